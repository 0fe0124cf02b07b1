// "host:port" as text. The host of an IPv6 address is in brackets: "[::1]:7070".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farpage {

struct HostPort {
  std::string host;  // a name or an address, without brackets
  uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};

// nullopt unless the text is a host, a colon and 0..65535.
std::optional<HostPort> host_port_from(std::string_view text);
std::string to_text(const HostPort& place);

}  // namespace farpage
