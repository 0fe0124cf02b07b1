// Human-readable sizes: "4096", "64K", "256M", "1G", "2T" (powers of 1024).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage {

// Accepts digits with an optional fraction ("1.5G"), an optional suffix B, K, M, G, T or KiB, MiB,
// GiB, TiB in any case. A fraction of a byte is dropped ("1.1K" is 1126).
// Fails with kInvalid on anything else, on overflow and on a fraction without a suffix.
Result<uint64_t> parse_size(std::string_view text);

// The shortest exact or one-decimal form: 67108864 -> "64M", 1536 -> "1.5K", 1000 -> "1000".
std::string format_size(uint64_t bytes);

}  // namespace farpage
