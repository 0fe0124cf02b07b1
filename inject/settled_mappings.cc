#include "inject/settled_mappings.h"

#include <algorithm>
#include <utility>

namespace farpage::inject {
namespace {

// Those of `ranges` that lie in [range.begin, range.end), or touch it.
std::span<const AddressRange> near(std::span<const AddressRange> ranges, AddressRange range) {
  const auto begin = std::ranges::lower_bound(ranges, range.begin, {}, &AddressRange::end);
  const auto end = std::ranges::upper_bound(ranges, range.end, {}, &AddressRange::begin);
  return begin < end ? std::span(begin, end) : std::span<const AddressRange>();
}

bool contains(std::span<const AddressRange> ranges, AddressRange range) {
  const auto found = std::ranges::lower_bound(ranges, range.begin, {}, &AddressRange::begin);
  return found != ranges.end() && *found == range;
}

// Neighbours become one.
void append(std::vector<AddressRange>& ranges, AddressRange range) {
  if (range.begin >= range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

std::vector<AddressRange> intersection(std::span<const AddressRange> ranges, AddressRange range) {
  std::vector<AddressRange> common;
  for (const AddressRange& each : near(ranges, range))
    append(common, {std::max(each.begin, range.begin), std::min(each.end, range.end)});
  return common;
}

std::vector<AddressRange> difference(std::span<const AddressRange> ranges,
                                     std::span<const AddressRange> without) {
  std::vector<AddressRange> rest;
  for (const AddressRange& range : ranges) {
    uint64_t begin = range.begin;
    for (const AddressRange& hole : near(without, range)) {
      append(rest, {begin, std::min(hole.begin, range.end)});
      begin = std::max(begin, hole.end);
    }
    append(rest, {begin, range.end});
  }
  return rest;
}

}  // namespace

std::vector<AddressRange> SettledMappings::behind_taken(std::span<const AddressRange> small) const {
  std::vector<AddressRange> behind;
  for (const AddressRange& range : small) {
    const std::span<const AddressRange> touched = near(taken_, range);
    if (!touched.empty() && touched.front().end == range.begin) behind.push_back(range);
  }
  return behind;
}

std::vector<AddressRange> SettledMappings::choose(std::span<const AddressRange> eligible) {
  const bool first = !std::exchange(has_looked_, true);
  std::vector<AddressRange> chosen;
  std::vector<AddressRange> seen;
  std::vector<AddressRange> whole;
  std::vector<AddressRange> taken;
  unsettled_ = false;
  for (const AddressRange& range : eligible) {
    if (range.bytes() < least_bytes_) continue;
    seen.push_back(range);
    const bool is_taken = contains(whole_, range);
    if (is_taken || first || contains(seen_, range)) {
      whole.push_back(range);
      taken.push_back(range);
      if (!is_taken) chosen.push_back(range);
      continue;
    }
    unsettled_ = true;
    const std::vector<AddressRange> already = intersection(taken_, range);
    const std::vector<AddressRange> twice = intersection(seen_, range);
    const bool stood = std::ranges::any_of(
        twice, [&](const AddressRange& part) { return part.bytes() >= least_bytes_; });
    if (already.empty() && !stood) continue;
    for (const AddressRange& part : difference(std::span(&range, 1), already))
      chosen.push_back(part);
    taken.push_back(range);
  }
  seen_ = std::move(seen);
  whole_ = std::move(whole);
  taken_ = std::move(taken);
  return chosen;
}

}  // namespace farpage::inject
