// Values whose bytes follow from their key and version, so that a wrong one is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kv {

inline constexpr size_t kMinContentBytes = 16;

// The first 8 bytes are a checksum of the rest, seeded by key and version: a value of another key,
// an older version, a page of zeros and a page that lies at the wrong place all fail.
// REQUIRES: value.size() >= kMinContentBytes.
void fill_content(std::string_view key, uint32_t version, std::span<std::byte> value);
bool holds_content(std::string_view key, uint32_t version, std::span<const std::byte> value);

}  // namespace kv
