#include "base/maps_line.h"

#include <sys/sysmacros.h>

#include <charconv>

namespace farpage {
namespace {

// Takes the part up to `end` off the front of `rest`.
std::string_view take(std::string_view& rest, char end) {
  const size_t at = std::min(rest.find(end), rest.size());
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return part;
}

std::optional<uint64_t> number(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<MapsLine> parse_maps_line(std::string_view line) {
  MapsLine parsed;
  const auto begin = number(take(line, '-'), 16);
  const auto end = number(take(line, ' '), 16);
  parsed.access = take(line, ' ');
  const auto offset = number(take(line, ' '), 16);
  const auto device_class = number(take(line, ':'), 16);
  const auto device = number(take(line, ' '), 16);
  const auto inode = number(take(line, ' '), 10);
  if (!begin || !end || !offset || !device_class || !device || !inode || parsed.access.size() != 4)
    return std::nullopt;
  parsed.begin = *begin;
  parsed.end = *end;
  parsed.offset = *offset;
  parsed.device = ::makedev(static_cast<unsigned>(*device_class), static_cast<unsigned>(*device));
  parsed.inode = *inode;
  const size_t name = line.find_first_not_of(' ');
  if (name != std::string_view::npos) parsed.name = line.substr(name);
  return parsed;
}

}  // namespace farpage
