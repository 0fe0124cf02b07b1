// The flags whose value is "host:port".
#pragma once

#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace farpage::cli {

// host_port_from(); kInvalid names `flag`.
Result<HostPort> parse_host_port(const std::string& text, const std::string& flag);

bool is_loopback(const HostPort& place);
bool is_wildcard(const HostPort& place);

// The host that peers use to connect to a listener: `advertise`, or the host it listens on.
// kInvalid when that is a wildcard address.
Result<std::string> published_host(const HostPort& listen, const std::string& advertise,
                                   const std::string& flag);

}  // namespace farpage::cli
