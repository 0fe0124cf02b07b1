#include "uffd/extent_map.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"

namespace farpage::uffd {
namespace {

constexpr uint64_t pages_between(uint64_t begin, uint64_t end) {
  return (end - begin) >> kPageShift;
}

}  // namespace

Result<std::unique_ptr<ExtentMap>> ExtentMap::create(uint64_t base, uint64_t pages,
                                                     uint64_t more_pages) {
  FARPAGE_TRY(kept, Mapping::anonymous(kKeptBytes));
  return create(base, pages, more_pages, std::move(kept));
}

Result<std::unique_ptr<ExtentMap>> ExtentMap::create(uint64_t base, uint64_t pages,
                                                     uint64_t more_pages, Mapping kept) {
  static_assert(sizeof(Lists) == kKeptBytes);
  const uint64_t granules = (more_pages + kGranulePages - 1) / kGranulePages;
  Memory memory;
  memory.kept = std::move(kept);
  if (granules > 0) {
    FARPAGE_TRY(addresses, Mapping::anonymous(granules * sizeof(uint64_t)));
    FARPAGE_TRY(masks, Mapping::anonymous(granules * sizeof(uint16_t)));
    memory.addresses = std::move(addresses);
    memory.masks = std::move(masks);
  }
  return std::unique_ptr<ExtentMap>(new ExtentMap(base, pages, granules, std::move(memory)));
}

ExtentMap::ExtentMap(uint64_t base, uint64_t pages, uint64_t granules, Memory memory)
    : base_(base), window_pages_(pages), granules_(granules), memory_(std::move(memory)) {
  find_kept();
}

// The list of the last version that a dead process has published.
void ExtentMap::find_kept() {
  const MutexLock lock(mutex_);
  const uint64_t version = lists().version.load(std::memory_order_acquire);
  const size_t count = lists().counts[version % 2].load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    const Entry& entry = list(version)[i];
    extents_.push_back({entry.begin.load(), entry.end.load(), entry.first.load()});
    place(extents_.back());
  }
}

Result<std::unique_ptr<ExtentMap>> ExtentMap::copy() const {
  return copy_with(base_);
}

Result<std::unique_ptr<ExtentMap>> ExtentMap::copy_without_window() const {
  return copy_with(kNoWindow);
}

Result<std::unique_ptr<ExtentMap>> ExtentMap::copy_with(uint64_t base) const {
  FARPAGE_TRY(map, create(base, window_pages_, granules_ * kGranulePages));
  const MutexLock lock(mutex_);
  const MutexLock its(map->mutex_);
  map->lowest_free_ = lowest_free_;
  map->extents_ = extents_;
  for (const Extent& extent : extents_) map->place(extent);
  map->publish();
  return map;
}

void ExtentMap::keep(Mapping kept) {
  const MutexLock lock(mutex_);
  memory_.kept = std::move(kept);
  publish();
}

size_t ExtentMap::size() const {
  const MutexLock lock(mutex_);
  return extents_.size();
}

// ---- readers ----

template <typename Read>
void ExtentMap::read_list(Read read) const {
  while (true) {
    const uint64_t version = lists().version.load(std::memory_order_acquire);
    const size_t count = lists().counts[version % 2].load(std::memory_order_acquire);
    read(list(version), count);
    // The loads of the entries acquire: this one is not done before them.
    if (lists().version.load(std::memory_order_acquire) == version) return;
  }
}

std::optional<PageIndex> ExtentMap::find_outside(uint64_t address) const {
  std::optional<PageIndex> found;
  read_list([&](const Entry* entries, size_t count) {
    found.reset();
    // The first extent that ends after the address. Without branches: which half it is cannot be
    // predicted.
    size_t low = 0;
    for (size_t rest = count; rest > 0;) {
      const size_t half = (rest + 1) / 2;
      const bool before = entries[low + half - 1].end.load(std::memory_order_acquire) <= address;
      low += half & (size_t{0} - size_t{before});
      rest -= half;
    }
    if (low == count) return;
    const uint64_t begin = entries[low].begin.load(std::memory_order_acquire);
    const uint64_t end = entries[low].end.load(std::memory_order_acquire);
    if (address < begin || address >= end) return;
    found = PageIndex{entries[low].first.load(std::memory_order_acquire) +
                      pages_between(begin, address)};
  });
  return found;
}

uint64_t ExtentMap::address_in_split(PageIndex page) const {
  uint64_t address = 0;
  read_list([&](const Entry* entries, size_t count) {
    address = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t begin = entries[i].begin.load(std::memory_order_acquire);
      const uint64_t end = entries[i].end.load(std::memory_order_acquire);
      const uint64_t first = entries[i].first.load(std::memory_order_acquire);
      if (page.value - first < pages_between(begin, end))
        address = begin + ((page.value - first) << kPageShift);
    }
  });
  return address;
}

uint32_t ExtentMap::consecutive(PageRun run) const {
  if (run.first.value < window_pages_)
    return static_cast<uint32_t>(std::min<uint64_t>(run.pages, window_pages_ - run.first.value));
  const uint64_t first = run.first.value - window_pages_;
  const uint64_t begin = address_of(run.first) - (first << kPageShift);  // may wrap, and back
  uint64_t count = 0;
  while (count < run.pages && first + count < granules_ * kGranulePages) {
    const uint64_t granule = (first + count) / kGranulePages;
    const uint64_t in_granule = (first + count) % kGranulePages;
    const unsigned rest = unsigned{mask(granule).load(std::memory_order_acquire)} >> in_granule;
    if (address_of(PageIndex{run.first.value + count}) != begin + ((first + count) << kPageShift))
      break;
    const bool is_split = addresses()[granule].load(std::memory_order_acquire) == kSplit;
    const auto together = static_cast<uint64_t>(std::countr_one(rest));
    const uint64_t pages = is_split ? std::min<uint64_t>(together, 1) : together;
    count += pages;
    if (pages == 0 || (!is_split && pages < kGranulePages - in_granule)) break;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(count, run.pages));
}

std::vector<PageRun> ExtentMap::runs_in(uint64_t begin, uint64_t end) const {
  const MutexLock lock(mutex_);
  return runs_between(begin, end);
}

std::vector<PageRun> ExtentMap::runs_between(uint64_t begin, uint64_t end) const {
  std::vector<PageRun> runs;
  const auto add = [&](uint64_t from, uint64_t to, uint64_t first) {
    const uint64_t low = std::max(from, begin);
    const uint64_t high = std::min(to, end);
    if (low >= high) return;
    runs.push_back({PageIndex{first + pages_between(from, low)},
                    static_cast<uint32_t>(pages_between(low, high))});
  };
  bool window_done = false;
  const auto add_window = [&] {
    if (!window_done) add(base_, base_ + (window_pages_ << kPageShift), 0);
    window_done = true;
  };
  const auto after = [&](const Extent& extent) { return extent.end <= begin; };
  for (auto extent = std::ranges::partition_point(extents_, after);
       extent != extents_.end() && extent->begin < end; ++extent) {
    if (extent->begin > base_) add_window();
    add(extent->begin, extent->end, extent->first);
  }
  add_window();
  return runs;
}

// ---- changes ----

void ExtentMap::publish() {
  const uint64_t next = lists().version.load(std::memory_order_relaxed) + 1;
  Entry* const entries = list(next);
  // Released stores: a reader that sees one of them, and so reads an overtaken list, also sees that
  // the version has changed since.
  for (size_t i = 0; i < extents_.size(); ++i) {
    entries[i].begin.store(extents_[i].begin, std::memory_order_release);
    entries[i].end.store(extents_[i].end, std::memory_order_release);
    entries[i].first.store(extents_[i].first, std::memory_order_release);
  }
  lists().counts[next % 2].store(extents_.size(), std::memory_order_release);
  lists().version.store(next, std::memory_order_release);
}

template <typename Each>
void ExtentMap::for_each_granule(const Extent& extent, Each each) const {
  const uint64_t first = extent.first - window_pages_;
  const uint64_t end = first + pages_between(extent.begin, extent.end);
  for (uint64_t at = first; at < end;) {
    const uint64_t next = std::min((at / kGranulePages + 1) * kGranulePages, end);
    const unsigned ones = (1U << (next - at)) - 1;
    each(at / kGranulePages, static_cast<uint16_t>(ones << (at % kGranulePages)));
    at = next;
  }
}

// The numbers of the extent are in use, and lead to its addresses.
void ExtentMap::place(const Extent& extent) {
  const uint64_t first = extent.first - window_pages_;
  for_each_granule(extent, [&](uint64_t granule, uint16_t pages) {
    const uint64_t address =
        extent.begin + ((granule * kGranulePages - first) << kPageShift);  // may wrap, and back
    const uint64_t before = addresses()[granule].load(std::memory_order_relaxed);
    addresses()[granule].store(before == 0 || before == address ? address : kSplit,
                               std::memory_order_release);
    mask(granule).fetch_or(pages, std::memory_order_release);
  });
}

void ExtentMap::free(const Extent& extent) {
  uint64_t lowest = lowest_free_;
  for_each_granule(extent, [&](uint64_t granule, uint16_t pages) {
    if (mask(granule).fetch_and(static_cast<uint16_t>(~pages), std::memory_order_release) != pages)
      return;
    addresses()[granule].store(0, std::memory_order_release);
    lowest = std::min(lowest, granule);
  });
  lowest_free_ = lowest;
}

std::optional<uint64_t> ExtentMap::take_granules(uint64_t count) {
  while (lowest_free_ < granules_ && !is_free(lowest_free_)) ++lowest_free_;
  uint64_t first = lowest_free_;
  for (uint64_t at = first; at < granules_; ++at) {
    if (!is_free(at)) {
      first = at + 1;
    } else if (at + 1 - first == count) {
      return first;
    }
  }
  return std::nullopt;
}

// One that goes on where its neighbour ends, in addresses and numbers, is a part of that.
void ExtentMap::insert(const Extent& extent) {
  const auto before = [&](const Extent& other) { return other.begin < extent.begin; };
  const auto goes_on = [](const Extent& first, const Extent& second) {
    return first.end == second.begin &&
           first.first + pages_between(first.begin, first.end) == second.first;
  };
  auto at = extents_.insert(std::ranges::partition_point(extents_, before), extent);
  if (at + 1 != extents_.end() && goes_on(*at, *(at + 1))) {
    at->end = (at + 1)->end;
    extents_.erase(at + 1);
  }
  if (at != extents_.begin() && goes_on(*(at - 1), *at)) {
    (at - 1)->end = at->end;
    extents_.erase(at);
  }
}

Status ExtentMap::add(uint64_t begin, uint64_t end) {
  FARPAGE_CHECK(begin < end && begin % kPageBytes == 0 && end % kPageBytes == 0, "%#llx to %#llx",
                static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end));
  const MutexLock lock(mutex_);
  if (!runs_between(begin, end).empty())
    return fail(ErrorCode::kConflict, "an extent is there already");
  const uint64_t count = (pages_between(begin, end) + kGranulePages - 1) / kGranulePages;
  if (extents_.size() == kMaxExtents)
    return fail(ErrorCode::kExhausted, std::to_string(kMaxExtents) + " extents exist");
  const std::optional<uint64_t> granule = take_granules(count);
  if (!granule) return fail(ErrorCode::kExhausted, "no page numbers are left");
  const Extent extent{begin, end, window_pages_ + *granule * kGranulePages};
  place(extent);
  insert(extent);
  publish();
  return {};
}

std::vector<ExtentMap::Extent> ExtentMap::cut(uint64_t begin, uint64_t end) {
  std::vector<Extent> parts;
  const auto before = [&](const Extent& extent) { return extent.end <= begin; };
  const auto first = std::ranges::partition_point(extents_, before);
  auto last = first;
  std::vector<Extent> left;
  for (; last != extents_.end() && last->begin < end; ++last) {
    const uint64_t low = std::max(last->begin, begin);
    const uint64_t high = std::min(last->end, end);
    parts.push_back({low, high, last->first + pages_between(last->begin, low)});
    if (last->begin < low) left.push_back({last->begin, low, last->first});
    if (high < last->end)
      left.push_back({high, last->end, last->first + pages_between(last->begin, high)});
  }
  const auto at = extents_.erase(first, last);
  extents_.insert(at, left.begin(), left.end());
  return parts;
}

void ExtentMap::remove(uint64_t begin, uint64_t end) {
  const MutexLock lock(mutex_);
  if (runs_between(begin, end).empty()) return;
  std::vector<Extent> before = extents_;
  const std::vector<Extent> parts = cut(begin, end);
  if (extents_.size() > kMaxExtents) {  // a hole makes one extent more: its numbers stay taken
    extents_ = std::move(before);
    return;
  }
  for (const Extent& part : parts) free(part);
  publish();
}

bool ExtentMap::move(uint64_t from, uint64_t to, uint64_t bytes) {
  const uint64_t window_end = base_ + (window_pages_ << kPageShift);
  const auto in_window = [&](uint64_t begin) {
    return begin < window_end && base_ < begin + bytes;
  };
  if (in_window(from) || in_window(to)) return false;
  const MutexLock lock(mutex_);
  std::vector<Extent> before = extents_;
  const std::vector<Extent> parts = cut(from, from + bytes);
  const std::vector<Extent> replaced = cut(to, to + bytes);
  if (extents_.size() + parts.size() > kMaxExtents) {
    extents_ = std::move(before);
    return false;
  }
  for (const Extent& part : replaced) free(part);
  for (Extent part : parts) {
    free(part);
    part.begin = part.begin - from + to;
    part.end = part.end - from + to;
    place(part);
    insert(part);
  }
  publish();
  return true;
}

}  // namespace farpage::uffd
