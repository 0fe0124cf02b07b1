// The state word of one page.
//
//                     +----- discard (unless Fetching, Unprotecting, Dropping) ------+
//                     v                                                              |
//   fault         +-------+  zero page   +-------+   first write   +-------------+   |
//  ------------>  | Empty |------------->| Dirty |<----------------|Unprotecting |   |
//                 +-------+  (Fetching)  +-------+                 +-------------+   |
//                     ^                   |     ^                     ^       ^      |
//        all zero     |          victim   |     | write: cancel       |       |      |
//                +----------+          +----------+-------------------+       |      |
//                | Dropping |<---------| Evicting |<-- victim -- +-------+     |      |
//                +----------+ replicas +----------+              | Clean |-----+      |
//     dropped         |       acknowledged                       +-------+   write    |
//                     v                                             ^                |
//                 +--------+   fault or prefetch   +----------+     | read fault     |
//                 | Remote |---------------------->| Fetching |-----+ (installed write-protected)
//                 +--------+                       +----------+
//                                                       | no replica answers in time
//                                                       v
//                                                   +------+
//                                                   | Lost |  SIGBUS
//                                                   +------+
//
// Transitions are compare-exchange by the one thread that makes them; each names its predecessor.
// The scheme of one word a page follows vmcache (Leis et al., SIGMOD 2023).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/strong.h"

namespace farpage::pager {

enum class PageState : uint8_t {
  kEmpty,         // never written, or discarded: reads as zeros, nothing is stored anywhere
  kFetching,      // a fault worker is about to install it and owns it
  kClean,         // present, write-protected; the remote copy is the same
  kDirty,         // present, writable (or spuriously protected); the remote copy is stale or none
  kUnprotecting,  // a fault worker is removing the protection; Dirty next
  kEvicting,      // present, protected, being copied out; a write cancels it
  kDropping,      // copied out and acknowledged, being dropped; faults wait for the drop
  kRemote,        // absent; all required replicas have it
  kLost,          // absent, and no replica could deliver it: a touch is SIGBUS
};
std::string_view to_string(PageState state);

// Number of a backing region in its fork group (backing region.h).
using BackingId = Strong<struct LayerIdTag, uint16_t>;
inline constexpr uint32_t kMaxBackingRegions = 4096;  // what 12 bits hold

// Layout: bits 0-3 state, 4-7 flags, 8-15 epoch of the installation, or while Remote of the
// eviction, 16-27 backing region, 28-31 references (page_age.h). The backing region means
// something only while refers_to_slot().
class PageWord {
 public:
  static constexpr uint32_t kFromRemote = 1U
                                          << 4;  // Fetching: there is a remote copy to fall back to
  // Fetching: a thread waits for it that came after the fetch began, so who ends it wakes the
  // page's waiters, though the kernel's call has done so: the page may have been dropped in
  // between.
  static constexpr uint32_t kAwaited = 1U << 5;
  // Dropping: all zeros, and on no replica.
  static constexpr uint32_t kWasZeros = 1U << 5;
  static constexpr uint32_t kWasDirty = 1U << 6;  // Evicting, Dropping: was Dirty before
  // Remote, Fetching: a compressed copy of exactly these bytes was kept here, and may be there
  // still. Without the flag a copy is not used: it may be out of date.
  static constexpr uint32_t kCompressed = 1U << 6;
  // Fetching: the program has given the page up meanwhile, and what is being fetched must not be
  // placed (base/event_order.h).
  static constexpr uint32_t kDiscarded = 1U << 7;
  // Remote, after a fork: the parent fetched the page while the fork was under way, so the child
  // may have it nevertheless.
  static constexpr uint32_t kMaybePresent = 1U << 7;
  // Clean, Dirty, Evicting, Dropping: write-protected, and since a fork its frame may be that of a
  // relative's page too. A write makes a frame of its own.
  static constexpr uint32_t kShared = 1U << 7;

  constexpr PageWord() = default;
  constexpr explicit PageWord(uint32_t raw) : raw_(raw) {}
  constexpr explicit PageWord(PageState state, uint32_t flags = 0)
      : raw_(static_cast<uint32_t>(state) | flags) {}

  constexpr PageState state() const { return static_cast<PageState>(raw_ & 0xF); }
  constexpr bool has(uint32_t flag) const { return (raw_ & flag) != 0; }
  constexpr uint8_t epoch() const { return static_cast<uint8_t>(raw_ >> 8); }
  // How often the eviction hand will skip the page.
  constexpr uint32_t references() const { return raw_ >> 28; }
  constexpr uint32_t raw() const { return raw_; }

  BackingId backing_region() const {
    return BackingId{static_cast<uint16_t>((raw_ >> 16) & 0xFFF)};
  }

  // The same page in another state: keeps epoch, backing region and references, drops the flags
  // that are not given.
  constexpr PageWord to(PageState state, uint32_t flags = 0) const {
    return PageWord((raw_ & ~0xFFU) | static_cast<uint32_t>(state) | flags);
  }
  PageWord with_backing(BackingId backing_region) const {
    return PageWord((raw_ & ~0xFFF0000U) | (uint32_t{backing_region.value} << 16));
  }
  constexpr PageWord with_epoch(uint8_t epoch) const {
    return PageWord((raw_ & ~0xFF00U) | (uint32_t{epoch} << 8));
  }
  constexpr PageWord with_references(uint32_t references) const {
    return PageWord((raw_ & ~0xF0000000U) | (references << 28));
  }
  constexpr bool operator==(const PageWord&) const = default;

 private:
  uint32_t raw_ = 0;
};

// Is the page in the target's memory, or about to be? Such pages count against the budget.
constexpr bool is_resident(PageState state) {
  return state != PageState::kEmpty && state != PageState::kRemote && state != PageState::kLost;
}

// Remote, and certainly without a copy from a fork.
constexpr bool can_be_read(PageWord word) {
  return word.state() == PageState::kRemote && !word.has(PageWord::kMaybePresent);
}

// See PageWord::kShared.
constexpr bool is_shared(PageWord word) {
  const PageState state = word.state();
  return word.has(PageWord::kShared) &&
         (state == PageState::kClean || state == PageState::kDirty ||
          state == PageState::kEvicting || state == PageState::kDropping);
}
// The flag, for a word of the same page in another of these states.
constexpr uint32_t shared_flag(PageWord word) {
  return is_shared(word) ? PageWord::kShared : 0;
}

// The flag, for a word of the same page in the other of its two states.
constexpr uint32_t compressed_flag(PageWord word) {
  const bool may_have = word.state() == PageState::kRemote || word.state() == PageState::kFetching;
  return may_have ? word.raw() & PageWord::kCompressed : 0;
}

// Would a copy of the target's memory made now lack this page?
constexpr bool is_away(PageWord word) {
  return word.state() == PageState::kRemote || word.state() == PageState::kLost ||
         word.state() == PageState::kDropping || word.has(PageWord::kFromRemote);
}

// Are the bytes in the page's slot of word.backing region() ones that this process may still read,
// or is about to write?
constexpr bool refers_to_slot(PageWord word) {
  switch (word.state()) {
    case PageState::kClean:
    case PageState::kEvicting:
    case PageState::kDropping:
    case PageState::kRemote:
      return true;
    case PageState::kFetching:
      return word.has(PageWord::kFromRemote);
    case PageState::kEmpty:
    case PageState::kDirty:
    case PageState::kUnprotecting:
    case PageState::kLost:
      return false;
  }
  return false;
}

// What a Dropping page is after its drop; `dropped` false: the target has refused it.
constexpr PageState after_drop(PageWord dropping, bool dropped) {
  const bool zeros = dropping.has(PageWord::kWasZeros);
  if (dropped) return zeros ? PageState::kEmpty : PageState::kRemote;
  return zeros ? PageState::kDirty : PageState::kClean;
}

// Is `from` -> `to` an edge of the diagram?
bool is_legal_transition(PageState from, PageState to);

}  // namespace farpage::pager
