// Session: one guest that is being restored: its memory, its image, and which of its pages are its
// own by now.
//
// A page of the guest is of the image until its content was placed, or until the guest has given it
// back. From then on it is the guest's own, and where it is missing it is zeros: the image is never
// asked again.
//
//   of the image --(placed | removed | unmapped)--> own
//
// Which pages are its own is in memory that survives this process, and so is what it takes to bring
// that up to date when it is killed between something that the kernel has done and its note:
//  - events are read into that memory. A page that was given back is never asked of the image
//  again,
//    and taking an event a second time changes nothing, so a successor takes them all once more;
//  - where the guest does not tell what it gives back, the kernel's answer to each copy is there,
//    too. Where it does, a page that was placed without a note is harmless: placing it again is
//    refused while it is there, and when it goes an event comes first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "image/image.h"
#include "pager/stats.h"
#include "snapshot/lifeline.h"
#include "snapshot/page_cache.h"
#include "snapshot/recorded_set.h"
#include "snapshot/snapshot_state.h"
#include "snapshot/wire.h"
#include "uffd/guest_memory.h"

namespace farpage::snapshot {

// An image that guests are restored from. Threads: any may read.
struct ServedImage {
  std::unique_ptr<image::Image> image;
  std::vector<uint32_t> stores;  // of the cache, by generation

  PageKey key_of(uint64_t page) const {
    const image::PageEntry& entry = image->map()[page];
    return {stores[entry.generation], entry.slot};
  }
};

// Between who reads the events of a guest and others that place pages in it. While an event is not
// read, the kernel refuses to place anything (EAGAIN); from the read on it does not, and a page
// that was given back must not come again. So nobody places a page between the read and the note of
// it. Threads: one closes, any number enters.
class InstallGate {
 public:
  bool enter() {
    // Both sequentially consistent, as those of close(): one of the two sees the other.
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    inside_.fetch_sub(1);
    return false;
  }
  void leave() { inside_.fetch_sub(1, std::memory_order_release); }
  void close();
  void open() { closed_.store(false, std::memory_order_release); }

 private:
  std::atomic<uint32_t> inside_{0};
  std::atomic<bool> closed_{false};
};

// One writer: the worker of the session.
struct SessionCounts {
  pager::Counter faults_cached;             // answered from the cache
  pager::Counter faults_read;               // by a READ
  pager::Counter faults_joined;             // by a READ of somebody else
  pager::Counter faults_zero;               // zeros of the image
  pager::Counter faults_own;                // zeros of pages that the guest had given back
  pager::Counter faults_lost;               // ended in SIGBUS
  pager::Counter removed_pages;             // by REMOVE events
  std::atomic<uint64_t> faults_huge{0};     // any thread: of 2 MiB pages
  std::atomic<uint64_t> huge_lost{0};       // the same
  std::atomic<uint64_t> replayed_pages{0};  // any thread
};

// What one thread that places pages is doing, of the guests that do not tell what they give back.
struct PlacingNote {
  uint64_t session = 0;
  uint64_t page = 0;
  std::array<std::byte, uffd::GuestMemory::kArgumentBytes> argument{};
};

// What a session is made of.
struct SessionParts {
  uint64_t number = 0;
  std::shared_ptr<const ServedImage> served;
  std::vector<GuestRegion> regions;
  uffd::GuestMemory memory;
  Fd pidfd;
  pid_t pid = 0;
  Fd socket;  // the VMM's end of it closes when this session is over: so it learns that, too
  Lifeline lifeline;
};

// Threads: as each method says; its memory is there when it is made.
class Session {
 public:
  static constexpr uint32_t kMaxRefusedPages = 10000;

  // `kept` has kept_bytes() and survives this process. It has zeros, or what a predecessor has
  // left.
  Session(SessionParts parts, Mapping kept, bool records);
  // kInvalid: a region lies outside of the image.
  static Result<std::shared_ptr<Session>> create(SessionParts parts, const SnapshotState& state,
                                                 bool records);
  static size_t kept_bytes(uint64_t pages, bool records);

  uint64_t number() const { return parts_.number; }
  pid_t pid() const { return parts_.pid; }
  int pidfd() const { return parts_.pidfd.get(); }
  const ServedImage& served() const { return *parts_.served; }
  const image::Image& image() const { return *parts_.served->image; }
  uffd::GuestMemory& memory() { return parts_.memory; }
  SessionRecord record() const;
  // Once the record is put: a successor that does not know of the session closes its descriptors.
  Status tie() const { return parts_.lifeline.tie(pidfd(), pid()); }
  InstallGate& gate() { return gate_; }
  SessionCounts& counts() { return counts_; }

  // nullopt: the address is in no region.
  std::optional<uint64_t> page_of(uint64_t address) const;
  // nullopt: the page is in no region.
  std::optional<uint64_t> address_of(uint64_t page) const;

  // Of what is placed at once, and is the guest's own as a whole: 1, or 512 with pages of 2 MiB.
  uint64_t unit_pages() const { return parts_.regions.front().page_bytes >> kPageShift; }
  bool is_huge() const { return unit_pages() > 1; }

  // -- any thread --
  bool is_own(uint64_t page) const {
    return (words()[page / 64].load(std::memory_order_acquire) >> (page % 64) & 1) != 0;
  }
  // True: it was not yet.
  bool own(uint64_t page) {
    const uint64_t bit = uint64_t{1} << (page % 64);
    return (words()[page / 64].fetch_or(bit, std::memory_order_acq_rel) & bit) == 0;
  }
  // The unit whose first page this is.
  void own_unit(uint64_t page) {
    for (uint64_t i = 0; i < unit_pages(); ++i) (void)own(page + i);
  }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  void end() { ended_.store(true, std::memory_order_release); }

  // Of a guest that does not tell what it gives back: a thread of the replayer holds it from
  // is_own() to own(), so that no page is placed twice. Else it is nothing.
  std::unique_lock<std::mutex> alone_in_replay() {
    return parts_.memory.tells_removals() ? std::unique_lock<std::mutex>()
                                          : std::unique_lock(replaying_);
  }
  // Places these bytes from `page` on: one unit, or several pages of 4 KiB of a guest that tells
  // removals. The caller notes that they are the guest's own.
  uffd::Outcome place(uint64_t page, uint64_t address, std::span<const std::byte> bytes,
                      PlacingNote& note);

  // -- before it has a worker --
  // After a predecessor: takes what it has read, and wakes who waits for what it has not answered.
  void take_over(std::span<const PlacingNote> notes);

  // -- its worker --
  void take_gone(const uffd::GuestMemory::Gone& gone);
  // A page that somebody waits for, and that is of the image.
  void note_touch(uint64_t page) {
    if (touched_.empty()) return;
    const std::atomic_ref<uint8_t> touch(touched_[page]);
    if (touch.load(std::memory_order_relaxed) != 0) return;
    const uint64_t n = head().touch_count.load(std::memory_order_relaxed);
    touch.store(RecordedSet::class_of(n), std::memory_order_relaxed);
    head().touch_count.store(n + 1, std::memory_order_relaxed);
  }
  // The kernel refuses a page that the VMM has named: true when it has done so for so long that the
  // guest would wait forever.
  bool note_refusal() {
    return refusals_.fetch_add(1, std::memory_order_relaxed) + 1 == kMaxRefusedPages;
  }
  void note_placed() { refusals_.store(0, std::memory_order_relaxed); }

  // -- any thread --
  // Of the pages that were faulted so far, the class of each (RecordedSet); empty: not recorded.
  std::vector<uint8_t> touches() const;
  uint64_t touch_count() const { return head().touch_count.load(std::memory_order_relaxed); }

 private:
  // The first page of what is kept. Behind it a bit for each page of the image: it is the guest's
  // own; and, where they are recorded, a byte for each: the class of its first touch.
  struct Head {
    std::array<std::byte, uffd::GuestMemory::kLandingBytes> landing;
    std::atomic<uint64_t> touch_count;
  };
  Head& head() const { return *reinterpret_cast<Head*>(kept_.data()); }
  std::atomic<uint64_t>* words() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(kept_.data() + kPageBytes);
  }

  SessionParts parts_;
  std::vector<GuestRegion> by_offset_;  // the regions, which are by address
  InstallGate gate_;
  std::mutex replaying_;
  SessionCounts counts_;
  const Mapping kept_;
  std::span<uint8_t> touched_;         // in it; empty: not recorded
  std::atomic<uint32_t> refusals_{0};  // in a row
  std::atomic<bool> ended_{false};
};

}  // namespace farpage::snapshot
