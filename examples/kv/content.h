// Values whose bytes derive from their key and version, so that a check detects a wrong one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kv {

inline constexpr size_t kMinContentBytes = 16;

// The first 8 bytes are a checksum of the rest, seeded by key and version: a value of another key,
// an older version, a page of zeros and a misplaced page all fail the check.
// REQUIRES: value.size() >= kMinContentBytes.
void fill_content(std::string_view key, uint32_t version, std::span<std::byte> value);
bool holds_content(std::string_view key, uint32_t version, std::span<const std::byte> value);

}  // namespace kv
