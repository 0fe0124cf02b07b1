#include "http/url.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/host_port.h"

namespace farpage::http {
namespace {

bool is_host(std::string_view host, bool bracketed) {
  if (bracketed) {
    in6_addr address{};
    return ::inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
  }
  if (host.empty() || host.size() > 255) return false;
  for (const char c : host) {
    const bool letter_or_digit =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && c != '.' && c != '-' && c != '_') return false;
  }
  return true;
}

}  // namespace

Result<Url> parse_url(std::string_view url) {
  const auto bad = [&] {
    return fail(ErrorCode::kInvalid,
                fmt::format("'{}' is no URL: write http://host:port", url.substr(0, 64)));
  };
  constexpr std::string_view kScheme = "http://";
  if (url.substr(0, kScheme.size()) != kScheme) return bad();
  std::string_view rest = url.substr(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = rest.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view port_text = rest.substr(colon + 1);
  unsigned port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port_text[0] == '0' ||
      port > 65535 || !is_host(host, bracketed))
    return bad();
  return Url{std::string(host), static_cast<uint16_t>(port)};
}

Result<std::vector<Url>> parse_urls(std::string_view urls) {
  std::vector<Url> list;
  while (true) {
    const size_t comma = urls.find(',');
    FARPAGE_TRY(url, parse_url(urls.substr(0, comma)));
    if (std::find(list.begin(), list.end(), url) != list.end())
      return fail(ErrorCode::kInvalid, to_text(url) + " is given twice");
    list.push_back(std::move(url));
    if (comma == std::string_view::npos) return list;
    urls.remove_prefix(comma + 1);
  }
}

std::string to_text(const Url& url) {
  return "http://" + farpage::to_text(HostPort{url.host, url.port});
}

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  const std::string text(host);
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace farpage::http
