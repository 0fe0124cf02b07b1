#include "base/base64.h"

#include <array>
#include <cstdint>

namespace farpage {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr int8_t kNoDigit = -1;

constexpr std::array<int8_t, 256> values_of_digits() {
  std::array<int8_t, 256> values{};
  for (int8_t& value : values) value = kNoDigit;
  for (size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  return values;
}

constexpr std::array<int8_t, 256> kValues = values_of_digits();

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t first = 0; first < bytes.size(); first += 3) {
    const std::string_view group = bytes.substr(first, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0U);
    for (size_t i = 0; i < 4; ++i)
      text.push_back(i <= group.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=');
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size() - padding; ++i) {
    const int8_t value = kValues[static_cast<unsigned char>(text[i])];
    if (value == kNoDigit) return std::nullopt;
    bits = (bits << 6 | static_cast<uint32_t>(value)) & 0xffffff;
    if (i % 4 == 3)
      for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xff));
  }
  // The bits of a last group that are behind its last byte are 0.
  if (padding == 1) {
    if ((bits & 3) != 0) return std::nullopt;
    for (const int shift : {10, 2}) bytes.push_back(static_cast<char>(bits >> shift & 0xff));
  }
  if (padding == 2) {
    if ((bits & 15) != 0) return std::nullopt;
    bytes.push_back(static_cast<char>(bits >> 4 & 0xff));
  }
  return bytes;
}

}  // namespace farpage
