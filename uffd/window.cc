#include "uffd/window.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "uffd/kernel_abi.h"

namespace farpage::uffd {

size_t WindowAddressSpace::read_events(std::span<Event> out) {
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
    std::optional<Event> event = decode(messages[i], base_, pages_);
    if (!event) continue;
    if (const auto* stray = std::get_if<StrayFault>(&*event))
      (void)poison_range(stray->address & ~(kPageBytes - 1), kPageBytes);
    out[stored++] = std::move(*event);
  }
  return stored;
}

Outcome WindowAddressSpace::install(PageIndex first, std::span<const std::byte> bytes,
                                    Protection protection) {
  FARPAGE_CHECK(bytes.size() % kPageBytes == 0, "%zu bytes", bytes.size());
  return userfaultfd_.copy(address_of(first), bytes.data(), bytes.size(), protection);
}

ZeroResult WindowAddressSpace::zero(PageRun run, ZeroFrames frames) {
  FARPAGE_CHECK(run.pages <= kMaxZeroRun, "%u pages", run.pages);
  return userfaultfd_.zero(address_of(run.first), bytes_of(run), frames);
}

Outcome WindowAddressSpace::protect(PageRun run) {
  return userfaultfd_.write_protect(address_of(run.first), bytes_of(run), true);
}

Outcome WindowAddressSpace::unprotect(PageRun run) {
  return userfaultfd_.write_protect(address_of(run.first), bytes_of(run), false);
}

Status WindowAddressSpace::poison(PageRun run) {
  return poison_range(address_of(run.first), bytes_of(run));
}

Status WindowAddressSpace::poison_range(uint64_t address, uint64_t bytes) {
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

// Requests a range outside the registered one: the kernel first checks for queued events and for
// the memory, and changes nothing.
Outcome WindowAddressSpace::ask() const {
  return userfaultfd_.write_protect(base_ - kPageBytes, kPageBytes, true);
}

bool WindowAddressSpace::event_pending() {
  return ask() == Outcome::kRetry;
}

bool WindowAddressSpace::alive() {
  return ask() != Outcome::kProcessGone;
}

WindowAddressSpace::Gathered WindowAddressSpace::gather(std::span<const PageIndex> pages,
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

void WindowAddressSpace::wake(PageRun run) {
  userfaultfd_.wake(address_of(run.first), bytes_of(run));
}

}  // namespace farpage::uffd
