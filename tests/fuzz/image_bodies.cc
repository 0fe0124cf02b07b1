// The JSON bodies of images. The first byte says which. What is accepted says the same after it was
// written and read again.
#include <string>
#include <string_view>

#include "coordinator/api_json.h"
#include "tests/fuzz/fuzz_target.h"

using namespace farpage::coordinator;  // NOLINT(google-build-using-namespace): decode_*, encode

namespace {

template <typename Decode>
auto check(std::string_view body, Decode decode) -> decltype(decode(body)) {
  auto first = decode(body);
  if (!first) return first;
  const std::string text = encode(*first);
  const auto second = decode(text);
  FUZZ_EXPECT(second.has_value());
  FUZZ_EXPECT(encode(*second) == text);
  return first;
}

void expect_whole_pages(uint64_t bytes) {
  FUZZ_EXPECT(bytes > 0 && bytes <= kMaxImageBytes && bytes % farpage::kPageBytes == 0);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 6) {
    case 0:
      if (const auto image = check(body, decode_image_create)) expect_whole_pages(image->bytes);
      break;
    case 1:
      (void)check(body, decode_image_progress);
      break;
    case 2:
      (void)check(body, decode_image_reader);
      break;
    case 3:
      if (const auto image = check(body, decode_image_info)) expect_whole_pages(image->bytes);
      break;
    case 4:
      (void)check(body, decode_image_list);
      break;
    default:
      if (const auto opened = check(body, decode_opened_image)) {
        expect_whole_pages(opened->image.bytes);
        FUZZ_EXPECT(!opened->image.name.value.empty());
        FUZZ_EXPECT(opened->regions.size() == opened->image.generations);
      }
      break;
  }
  return 0;
}
