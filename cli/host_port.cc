#include "cli/host_port.h"

#include <fmt/format.h>

#include <charconv>

#include "http/url.h"

namespace farpage::cli {

bool HostPort::is_loopback() const {
  return http::is_loopback(host);
}

bool HostPort::is_wildcard() const {
  return host == "0.0.0.0" || host == "::";
}

Result<HostPort> parse_host_port(const std::string& text, const std::string& flag) {
  const auto wrong = [&] {
    return fail(
        ErrorCode::kInvalid,
        fmt::format("{}: '{}' is not host:port, such as 127.0.0.1:7070 or [::1]:7070", flag, text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong();
  HostPort parsed;
  parsed.host = text.substr(0, colon);
  if (parsed.host.front() == '[' && parsed.host.back() == ']' && parsed.host.size() > 2)
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  else if (parsed.host.find_first_of("[]:/ ") != std::string::npos)
    return wrong();
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, parsed.port);
  if (problem != std::errc() || rest != end) return wrong();
  return parsed;
}

Result<std::string> published_host(const HostPort& listen, const std::string& advertise,
                                   const std::string& flag) {
  if (!advertise.empty()) return advertise;
  if (!listen.is_wildcard()) return listen.host;
  return fail(ErrorCode::kInvalid,
              fmt::format("{} listens on every address, so others need to know which to use: add "
                          "--advertise with this host's name or address",
                          flag));
}

}  // namespace farpage::cli
