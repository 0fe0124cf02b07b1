// Parsing of "host:port".
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace farpage::cli {

struct HostPort {
  std::string host;
  uint16_t port = 0;
  bool is_loopback() const;
  bool is_wildcard() const;
};

// "host:port", "[v6]:port". kInvalid names `flag`.
Result<HostPort> parse_host_port(const std::string& text, const std::string& flag);

// The host that peers use to connect to a listener: `advertise`, or the host it listens on.
// kInvalid when that is a wildcard address.
Result<std::string> published_host(const HostPort& listen, const std::string& advertise,
                                   const std::string& flag);

}  // namespace farpage::cli
