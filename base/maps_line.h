// Lines of /proc/PID/maps, and of smaps, which has each of them before the values of the mapping.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

namespace farpage {

struct MapsLine {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string_view access;  // "rw-p"
  uint64_t offset = 0;      // in the file
  uint64_t device = 0;      // as dev_t
  uint64_t inode = 0;
  std::string_view name;  // "": none
};
// nullopt: not such a line.
std::optional<MapsLine> parse_maps_line(std::string_view line);

template <typename Line>
void for_each_line(std::string_view text, Line line) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace farpage
