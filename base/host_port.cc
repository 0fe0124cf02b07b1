#include "base/host_port.h"

#include <charconv>

namespace farpage {

std::optional<HostPort> host_port_from(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']' && host.size() > 2)
    host = host.substr(1, host.size() - 2);
  else if (host.find_first_of("[]:/ ") != std::string_view::npos)
    return std::nullopt;
  HostPort parsed{std::string(host)};
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, parsed.port);
  if (problem != std::errc() || rest != end) return std::nullopt;
  return parsed;
}

std::string to_text(const HostPort& place) {
  const bool brackets = place.host.find(':') != std::string::npos;
  return (brackets ? "[" + place.host + "]" : place.host) + ":" + std::to_string(place.port);
}

}  // namespace farpage
