#include "cli/host_port.h"

#include <fmt/format.h>

#include "http/url.h"

namespace farpage::cli {

bool is_loopback(const HostPort& place) {
  return http::is_loopback(place.host);
}

bool is_wildcard(const HostPort& place) {
  return place.host == "0.0.0.0" || place.host == "::";
}

Result<HostPort> parse_host_port(const std::string& text, const std::string& flag) {
  auto parsed = host_port_from(text);
  if (!parsed)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("{}: '{}' is not host:port, such as 127.0.0.1:7070 or [::1]:7070", flag, text));
  return std::move(*parsed);
}

Result<std::string> published_host(const HostPort& listen, const std::string& advertise,
                                   const std::string& flag) {
  if (!advertise.empty()) return advertise;
  if (!is_wildcard(listen)) return listen.host;
  return fail(ErrorCode::kInvalid,
              fmt::format("{} listens on every address, so others need to know which to use: add "
                          "--advertise with this host's name or address",
                          flag));
}

}  // namespace farpage::cli
