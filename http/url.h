// http://host:port, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage::http {

inline constexpr size_t kMaxUrlBytes = 256;

struct Url {
  std::string host;  // name, IPv4, or IPv6 without its brackets
  uint16_t port = 0;
};

// Accepts http://host:port with an optional final slash; else kInvalid with the remedy.
Result<Url> parse_url(std::string_view url);

// True for localhost, 127.0.0.0/8 and ::1 in these spellings.
bool is_loopback(std::string_view host);

}  // namespace farpage::http
