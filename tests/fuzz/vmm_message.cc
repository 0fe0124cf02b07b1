// What a VMM sends: the end of the array is found whatever the parts, and regions keep their
// promises.
#include <string_view>

#include "base/strong.h"
#include "snapshot/wire.h"
#include "tests/fuzz/fuzz_target.h"

using farpage::snapshot::ArrayEnd;
using farpage::snapshot::decode_regions;
using farpage::snapshot::GuestRegion;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ArrayEnd whole;
  const bool is_array = whole.take(text);
  ArrayEnd in_parts;
  bool parts_are = true;
  for (size_t at = 0; at < size && parts_are; at += 3)
    parts_are = in_parts.take(text.substr(at, 3));
  FUZZ_EXPECT(is_array == parts_are);
  FUZZ_EXPECT(whole.found() == in_parts.found() && whole.length() == in_parts.length());
  FUZZ_EXPECT(whole.length() <= size);
  const bool has_end = is_array && whole.found();
  const auto regions = decode_regions(has_end ? text.substr(0, whole.length()) : text);
  if (!regions) return 0;
  FUZZ_EXPECT(!regions->empty() && regions->size() <= farpage::snapshot::kMaxRegions);
  for (size_t i = 0; i < regions->size(); ++i) {
    const GuestRegion& one = (*regions)[i];
    FUZZ_EXPECT(one.bytes > 0 && (one.address | one.bytes | one.offset) % farpage::kPageBytes == 0);
    FUZZ_EXPECT(one.address + one.bytes > one.address && one.offset + one.bytes > one.offset);
    for (size_t j = 0; j < i; ++j) {
      const GuestRegion& other = (*regions)[j];
      FUZZ_EXPECT(other.address + other.bytes <= one.address);
      FUZZ_EXPECT(other.offset + other.bytes <= one.offset ||
                  one.offset + one.bytes <= other.offset);
    }
  }
  return 0;
}
