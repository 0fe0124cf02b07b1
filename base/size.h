// Sizes as people write them: "4096", "64K", "256M", "1G", "2T" (powers of 1024).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage {

// Accepts digits with an optional fraction ("1.5G"), an optional suffix B, K, M, G, T or KiB, MiB,
// GiB, TiB in any case. Fails with kInvalid on anything else, on overflow and on a fraction of a
// byte.
Result<uint64_t> parse_size(std::string_view text);

// The shortest exact or one-decimal form: 67108864 -> "64M", 1536 -> "1.5K", 1000 -> "1000".
std::string format_size(uint64_t bytes);

}  // namespace farpage
