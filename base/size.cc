#include "base/size.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <limits>

namespace farpage {
namespace {

tl::unexpected<Error> bad_size(std::string_view text) {
  return fail(
      ErrorCode::kInvalid,
      fmt::format("'{}' is not a size: write a number with K, M, G or T, such as 256M", text));
}

tl::unexpected<Error> too_large(std::string_view text) {
  return fail(ErrorCode::kInvalid,
              fmt::format("'{}' is too large: sizes have at most 64 bits", text));
}

// Bits to shift for a suffix, or -1.
int suffix_shift(std::string_view suffix) {
  std::string lower;
  for (const char c : suffix)
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty() || lower == "b") return 0;
  constexpr std::string_view kLetters = "kmgt";
  const size_t position = kLetters.find(lower.front());
  if (position == std::string_view::npos) return -1;
  const std::string_view rest = std::string_view(lower).substr(1);
  if (!rest.empty() && rest != "b" && rest != "ib") return -1;
  return static_cast<int>(position + 1) * 10;
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  size_t at = 0;
  const auto is_digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  uint64_t mantissa = 0;
  uint64_t scale = 1;  // 10^decimals
  bool digits = false;
  const auto take_digits = [&](bool fraction) {
    for (; is_digit(); ++at) {
      const auto digit = static_cast<uint64_t>(text[at] - '0');
      if (mantissa > (kMax - digit) / 10) return false;
      mantissa = mantissa * 10 + digit;
      if (fraction) {
        if (scale > 1'000'000'000) return false;
        scale *= 10;
      }
      digits = true;
    }
    return true;
  };
  if (!take_digits(false)) return too_large(text);
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!take_digits(true)) return bad_size(text);
  }
  if (!digits) return bad_size(text);
  const int shift = suffix_shift(text.substr(at));
  if (shift < 0) return bad_size(text);
  if (shift > 0 && mantissa > (kMax >> shift)) return scale == 1 ? too_large(text) : bad_size(text);
  const uint64_t scaled = mantissa << shift;
  if (scaled % scale != 0 && shift == 0) return bad_size(text);
  return scaled / scale;
}

std::string format_size(uint64_t bytes) {
  constexpr std::array<char, 4> kSuffixes = {'K', 'M', 'G', 'T'};
  int step = 0;
  while (step < 4 && bytes >= (uint64_t{1} << (10 * (step + 1)))) ++step;
  if (step == 0) return fmt::format("{}", bytes);
  const uint64_t unit = uint64_t{1} << (10 * step);
  const char suffix = kSuffixes[static_cast<size_t>(step - 1)];
  if (bytes % unit == 0) return fmt::format("{}{}", bytes / unit, suffix);
  return fmt::format("{:.1f}{}", static_cast<double>(bytes) / static_cast<double>(unit), suffix);
}

}  // namespace farpage
