#include "kv/content.h"

#include <algorithm>
#include <cstring>

namespace kv {
namespace {

// The finalizer of splitmix64 (Steele et al., OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t seed_of(std::string_view key, uint32_t version) {
  uint64_t seed = mix(version + 1ULL);
  for (const char c : key) seed = mix(seed ^ static_cast<unsigned char>(c));
  return seed;
}

// Depends on each word and its position.
uint64_t checksum(uint64_t seed, std::span<const std::byte> bytes) {
  uint64_t sum = mix(seed ^ bytes.size());
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    sum = (sum ^ word) * 0x9E3779B97F4A7C15ULL;
    sum ^= sum >> 29;
  }
  return sum;
}

}  // namespace

void fill_content(std::string_view key, uint32_t version, std::span<std::byte> value) {
  const uint64_t seed = seed_of(key, version);
  const std::span<std::byte> body = value.subspan(8);
  for (size_t at = 0; at < body.size(); at += 8) {
    const uint64_t word = mix(seed + at);
    std::memcpy(body.data() + at, &word, std::min<size_t>(8, body.size() - at));
  }
  const uint64_t sum = checksum(seed, body);
  std::memcpy(value.data(), &sum, 8);
}

bool holds_content(std::string_view key, uint32_t version, std::span<const std::byte> value) {
  if (value.size() < kMinContentBytes) return false;
  uint64_t stored = 0;
  std::memcpy(&stored, value.data(), 8);
  return stored == checksum(seed_of(key, version), value.subspan(8));
}

}  // namespace kv
