// A line of a process that hands shared memory over: what is accepted keeps its promises. The first
// byte: how many memories came with it.
#include <string_view>

#include "base/strong.h"
#include "share/message.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using farpage::share::decode_regions;
  if (size == 0) return 0;
  const size_t memories = data[0] % (farpage::share::kMaxMemories + 1);
  const std::string_view line(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto claims = decode_regions(line, memories);
  if (!claims) return 0;
  FUZZ_EXPECT(!claims->empty() && claims->size() <= farpage::share::kMaxRegions);
  for (size_t i = 0; i < claims->size(); ++i) {
    const farpage::uffd::SharedClaim& one = (*claims)[i];
    FUZZ_EXPECT(one.file < memories);
    FUZZ_EXPECT(one.bytes > 0 && (one.address | one.bytes | one.offset) % farpage::kPageBytes == 0);
    FUZZ_EXPECT(one.address + one.bytes > one.address && one.offset + one.bytes > one.offset);
    for (size_t j = 0; j < i; ++j) {
      const farpage::uffd::SharedClaim& other = (*claims)[j];
      FUZZ_EXPECT(other.address + other.bytes <= one.address ||
                  one.address + one.bytes <= other.address);
      FUZZ_EXPECT(other.file != one.file || other.offset + other.bytes <= one.offset ||
                  one.offset + one.bytes <= other.offset);
    }
  }
  return 0;
}
