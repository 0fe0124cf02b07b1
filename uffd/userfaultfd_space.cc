#include "uffd/userfaultfd_space.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "uffd/kernel_abi.h"

namespace farpage::uffd {

size_t UserfaultfdSpace::read_events(std::span<Event> out) {
  constexpr size_t kMaxBatch = 32;
  std::array<uffd_msg, kMaxBatch> messages;
  const size_t got =
      userfaultfd_.read(std::span(messages).first(std::min(out.size(), messages.size())));
  size_t stored = 0;
  for (size_t i = 0; i < got; ++i) {
    if (std::optional<Userfaultfd> child = userfaultfd_.child_of(messages[i])) {
      out[stored++] = Forked{make_child(std::move(*child))};
      continue;
    }
    std::optional<Event> event = decode(messages[i], *extents_);
    if (!event) continue;
    if (const auto* stray = std::get_if<StrayFault>(&*event))
      (void)poison_range(stray->address & ~(kPageBytes - 1), kPageBytes);
    out[stored++] = std::move(*event);
  }
  return stored;
}

Outcome UserfaultfdSpace::install(PageIndex first, std::span<const std::byte> bytes,
                                  Protection protection) {
  FARPAGE_CHECK(bytes.size() % kPageBytes == 0, "%zu bytes", bytes.size());
  const PageRun run{first, static_cast<uint32_t>(bytes.size() >> kPageShift)};
  if (extents_->consecutive(run) < run.pages) return Outcome::kUnmapped;
  return unless_moving(
      userfaultfd_.copy(address_of(first), bytes.data(), bytes.size(), protection));
}

// The kernel looks for the mapping before it looks for unread events (since Linux 6.9, in
// mm/userfaultfd.c): where an mremap holds the lock meanwhile, the memory seems to be gone.
Outcome UserfaultfdSpace::unless_moving(Outcome outcome) const {
  return outcome == Outcome::kUnmapped && ask() == Outcome::kRetry ? Outcome::kRetry : outcome;
}

ZeroResult UserfaultfdSpace::zero(PageRun run, ZeroFrames frames) {
  FARPAGE_CHECK(run.pages <= kMaxZeroRun, "%u pages", run.pages);
  const PageRun part{run.first, extents_->consecutive(run)};
  if (part.pages == 0) return {0, Outcome::kUnmapped};
  ZeroResult result = userfaultfd_.zero(address_of(part.first), bytes_of(part), frames);
  result.outcome = unless_moving(result.outcome);
  if (result.outcome == Outcome::kDone && part.pages < run.pages)
    result.outcome = Outcome::kUnmapped;
  return result;
}

Outcome UserfaultfdSpace::write_protect(PageRun run, bool on) const {
  Outcome outcome = Outcome::kDone;
  for_each_part(run, [&](uint64_t address, uint64_t bytes) {
    outcome = userfaultfd_.write_protect(address, bytes, on);
    return outcome == Outcome::kDone;
  });
  return outcome;
}

Outcome UserfaultfdSpace::protect(PageRun run) {
  return write_protect(run, true);
}

Outcome UserfaultfdSpace::unprotect(PageRun run) {
  return write_protect(run, false);
}

Status UserfaultfdSpace::poison(PageRun run) {
  Status status;
  for_each_part(run, [&](uint64_t address, uint64_t bytes) {
    status = poison_range(address, bytes);
    return status.has_value();
  });
  return status;
}

Status UserfaultfdSpace::poison_range(uint64_t address, uint64_t bytes) {
  if (!userfaultfd_.has_poison()) return poison_by_mapping(address, bytes);
  switch (userfaultfd_.poison(address, bytes)) {
    case Outcome::kDone:
    case Outcome::kAlreadyPresent:
    case Outcome::kUnmapped:
    case Outcome::kProcessGone:
      return {};
    case Outcome::kRetry:
      break;
  }
  return fail(ErrorCode::kUnavailable, "an event is queued");
}

// Requests a page below the window, or one where programs have nothing: the kernel first checks for
// queued events and for the memory, and changes nothing; where an extent ends there, its last page
// is protected, which costs a fault.
Outcome UserfaultfdSpace::ask() const {
  constexpr uint64_t kLow = uint64_t{1} << 20;  // above vm.mmap_min_addr
  const uint64_t window = extents_->window_address();
  return userfaultfd_.write_protect(window == ExtentMap::kNoWindow ? kLow : window - kPageBytes,
                                    kPageBytes, true);
}

bool UserfaultfdSpace::event_pending() {
  return ask() == Outcome::kRetry;
}

bool UserfaultfdSpace::alive() {
  return ask() != Outcome::kProcessGone;
}

UserfaultfdSpace::Gathered UserfaultfdSpace::gather(std::span<const PageIndex> pages,
                                                    std::span<iovec> vector) const {
  Gathered gathered;
  for (const PageIndex page : pages) {
    const uint64_t address = address_of(page);
    if (gathered.elements > 0) {
      iovec& last = vector[gathered.elements - 1];
      if (reinterpret_cast<uint64_t>(last.iov_base) + last.iov_len == address) {
        last.iov_len += kPageBytes;
        ++gathered.pages;
        continue;
      }
    }
    if (gathered.elements == vector.size()) break;
    vector[gathered.elements++] = {reinterpret_cast<void*>(address), kPageBytes};
    ++gathered.pages;
  }
  return gathered;
}

void UserfaultfdSpace::wake(PageRun run) {
  for_each_part(run, [this](uint64_t address, uint64_t bytes) {
    userfaultfd_.wake(address, bytes);
    return true;
  });
}

}  // namespace farpage::uffd
