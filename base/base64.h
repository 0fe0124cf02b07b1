// Base64 (RFC 4648, section 4), with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace farpage {

std::string to_base64(std::string_view bytes);
// nullopt: it is not the base64 of anything.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace farpage
