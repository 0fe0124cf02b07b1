// http://host:port, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace farpage::http {

inline constexpr size_t kMaxUrlBytes = 256;

struct Url {
  std::string host;  // name, IPv4, or IPv6 without its brackets
  uint16_t port = 0;
  friend bool operator==(const Url&, const Url&) = default;
};

// Accepts http://host:port with an optional final slash; else kInvalid with the remedy.
Result<Url> parse_url(std::string_view url);

// One or several of them, with commas between. kInvalid: also for one that is given twice.
Result<std::vector<Url>> parse_urls(std::string_view urls);

// With an IPv6 address in brackets, without a final slash.
std::string to_text(const Url& url);

// True for localhost, 127.0.0.0/8 and ::1 in these spellings.
bool is_loopback(std::string_view host);

}  // namespace farpage::http
