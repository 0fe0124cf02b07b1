#include "snapshot/session.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

namespace farpage::snapshot {

void InstallGate::close() {
  closed_.store(true);
  // Each of them places a few pages.
  while (inside_.load() != 0) ::sched_yield();
}

size_t Session::kept_bytes(uint64_t pages, bool records) {
  const uint64_t own = (pages + 63) / 64 * sizeof(uint64_t);
  return kPageBytes + own + (records ? pages : 0);
}

Session::Session(SessionParts parts, Mapping kept, bool records)
    : parts_(std::move(parts)), by_offset_(parts_.regions), kept_(std::move(kept)) {
  std::sort(by_offset_.begin(), by_offset_.end(),
            [](const GuestRegion& a, const GuestRegion& b) { return a.offset < b.offset; });
  const uint64_t pages = image().pages();
  if (records)
    touched_ = {reinterpret_cast<uint8_t*>(kept_.data()) + kept_bytes(pages, false), pages};
  parts_.memory.land_in(head().landing);
}

Result<std::shared_ptr<Session>> Session::create(SessionParts parts, const SnapshotState& state,
                                                 bool records) {
  const uint64_t pages = parts.served->image->pages();
  for (const GuestRegion& region : parts.regions)
    FARPAGE_TRY_VOID(check_region(region, pages, parts.served->image->name()));
  FARPAGE_TRY(kept, state.session_memory(parts.number, kept_bytes(pages, records)));
  return std::make_shared<Session>(std::move(parts), std::move(kept), records);
}

SessionRecord Session::record() const {
  return {.image = image().name(),
          .pid = parts_.pid,
          .pidfd = parts_.pidfd.get(),
          .userfaultfd = parts_.memory.fd(),
          .socket = parts_.socket.get(),
          .lifeline = parts_.lifeline.descriptors(),
          .regions = parts_.regions};
}

void Session::take_over(std::span<const PlacingNote> notes) {
  uffd::GuestMemory::Events left;
  uffd::GuestMemory::left_in(head().landing, left);
  for (size_t i = 0; i < left.gone_count; ++i) take_gone(left.gone[i]);
  for (const PlacingNote& note : notes)
    if (note.session == number() && note.page < image().pages() &&
        uffd::GuestMemory::is_placed(note.argument))
      own_unit(note.page);
  for (const GuestRegion& region : parts_.regions) parts_.memory.wake(region.address, region.bytes);
}

uffd::Outcome Session::place(uint64_t page, uint64_t address, std::span<const std::byte> bytes,
                             PlacingNote& note) {
  if (parts_.memory.tells_removals() && !is_huge()) return parts_.memory.copy(address, bytes);
  // First it is a note that says nothing, then one of this page.
  uffd::GuestMemory::clear_argument(note.argument);
  std::atomic_ref(note.session).store(number(), std::memory_order_release);
  std::atomic_ref(note.page).store(page, std::memory_order_release);
  return parts_.memory.copy_noted(address, bytes, note.argument);
}

std::optional<uint64_t> Session::page_of(uint64_t address) const {
  const auto behind = std::upper_bound(
      parts_.regions.begin(), parts_.regions.end(), address,
      [](uint64_t value, const GuestRegion& region) { return value < region.address; });
  if (behind == parts_.regions.begin()) return std::nullopt;
  const GuestRegion& region = *std::prev(behind);
  if (address - region.address >= region.bytes) return std::nullopt;
  return (address - region.address + region.offset) >> kPageShift;
}

std::optional<uint64_t> Session::address_of(uint64_t page) const {
  const uint64_t offset = page << kPageShift;
  const auto behind = std::upper_bound(
      by_offset_.begin(), by_offset_.end(), offset,
      [](uint64_t value, const GuestRegion& region) { return value < region.offset; });
  if (behind == by_offset_.begin()) return std::nullopt;
  const GuestRegion& region = *std::prev(behind);
  if (offset - region.offset >= region.bytes) return std::nullopt;
  return region.address + (offset - region.offset);
}

std::vector<uint8_t> Session::touches() const {
  std::vector<uint8_t> copy(touched_.size());
  for (uint64_t page = 0; page < copy.size(); ++page)
    copy[page] = std::atomic_ref(touched_[page]).load(std::memory_order_relaxed);
  return copy;
}

void Session::take_gone(const uffd::GuestMemory::Gone& gone) {
  for (const GuestRegion& region : parts_.regions) {
    const uint64_t begin = std::max(gone.begin, region.address);
    const uint64_t end = std::min(gone.end, region.address + region.bytes);
    for (uint64_t address = begin; address < end; address += kPageBytes)
      own((address - region.address + region.offset) >> kPageShift);
    if (begin < end && !gone.unmapped) counts_.removed_pages.add((end - begin) >> kPageShift);
  }
}

}  // namespace farpage::snapshot
