#include "inject/far_place.h"

#include "base/maps_line.h"

namespace farpage::inject {
namespace {
constexpr uint64_t kFarAway = uint64_t{64} << 30;
constexpr uint64_t kEndOfUserSpace = uint64_t{1} << 47;  // [vsyscall] is above
constexpr uint64_t kAlignment = uint64_t{2} << 20;       // few pages of the kernel's tables
}  // namespace

uint64_t far_place(std::string_view maps) {
  uint64_t place = 0;
  uint64_t end = 0;  // of the mapping before
  for_each_line(maps, [&](std::string_view line) {
    const std::optional<MapsLine> mapping = parse_maps_line(line);
    if (!mapping || mapping->begin >= kEndOfUserSpace) return;
    if (mapping->begin >= end + 2 * kFarAway)
      place = (mapping->begin - kFarAway) / kAlignment * kAlignment;
    end = mapping->end;
  });
  return place;
}

}  // namespace farpage::inject
