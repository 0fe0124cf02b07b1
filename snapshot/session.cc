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

Session::Session(uint64_t number, std::shared_ptr<const ServedImage> served,
                 std::vector<GuestRegion> regions, uffd::GuestMemory memory, Fd pidfd, pid_t pid,
                 Mapping own, Mapping touched)
    : number_(number),
      served_(std::move(served)),
      regions_(std::move(regions)),
      by_offset_(regions_),
      memory_(std::move(memory)),
      pidfd_(std::move(pidfd)),
      pid_(pid),
      own_(std::move(own)),
      touched_(std::move(touched)) {
  std::sort(by_offset_.begin(), by_offset_.end(),
            [](const GuestRegion& a, const GuestRegion& b) { return a.offset < b.offset; });
}

Result<std::shared_ptr<Session>> Session::create(uint64_t number,
                                                 std::shared_ptr<const ServedImage> served,
                                                 std::vector<GuestRegion> regions,
                                                 uffd::GuestMemory memory, Fd pidfd, pid_t pid,
                                                 bool records) {
  const uint64_t pages = served->image->pages();
  for (const GuestRegion& region : regions)
    if (region.offset + region.bytes > pages << kPageShift)
      return fail(
          ErrorCode::kInvalid,
          fmt::format("a region ends at offset {}, and image '{}' has {} bytes",
                      region.offset + region.bytes, served->image->name(), pages << kPageShift));
  FARPAGE_TRY(own, Mapping::anonymous((pages + 63) / 64 * sizeof(uint64_t)));
  Mapping touched;
  if (records) {
    FARPAGE_TRY(classes, Mapping::anonymous(pages));
    touched = std::move(classes);
  }
  return std::make_shared<Session>(number, std::move(served), std::move(regions), std::move(memory),
                                   std::move(pidfd), pid, std::move(own), std::move(touched));
}

std::optional<uint64_t> Session::page_of(uint64_t address) const {
  const auto behind = std::upper_bound(
      regions_.begin(), regions_.end(), address,
      [](uint64_t value, const GuestRegion& region) { return value < region.address; });
  if (behind == regions_.begin()) return std::nullopt;
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
  std::vector<uint8_t> copy(touched_.valid() ? image().pages() : 0);
  for (uint64_t page = 0; page < copy.size(); ++page)
    copy[page] = std::atomic_ref(reinterpret_cast<uint8_t*>(touched_.data())[page])
                     .load(std::memory_order_relaxed);
  return copy;
}

void Session::take_gone(const uffd::GuestMemory::Gone& gone) {
  for (const GuestRegion& region : regions_) {
    const uint64_t begin = std::max(gone.begin, region.address);
    const uint64_t end = std::min(gone.end, region.address + region.bytes);
    for (uint64_t address = begin; address < end; address += kPageBytes)
      own((address - region.address + region.offset) >> kPageShift);
    if (begin < end && !gone.unmapped) counts_.removed_pages.add((end - begin) >> kPageShift);
  }
}

}  // namespace farpage::snapshot
