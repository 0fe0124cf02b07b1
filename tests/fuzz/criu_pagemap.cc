// pagemap-PID.img of a checkpoint: what is taken keeps the promises of a Pagemap, and is the same
// when it was written and read again. The files of criu end at any byte.
#include "criu/pagemap.h"

#include <span>

#include "base/strong.h"
#include "tests/fuzz/fuzz_target.h"

using farpage::criu::decode_pagemap;
using farpage::criu::encode_pagemap;
using farpage::criu::kMaxAddress;
using farpage::criu::PagemapRange;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto pagemap = decode_pagemap(file);
  if (!pagemap) {
    FUZZ_EXPECT(!pagemap.error().context.empty());
    return 0;
  }
  uint64_t after = 0;
  for (const PagemapRange& range : pagemap->ranges) {
    FUZZ_EXPECT(range.pages > 0 && range.address % farpage::kPageBytes == 0);
    FUZZ_EXPECT(range.address >= after && range.end() > range.address);
    FUZZ_EXPECT(range.end() <= kMaxAddress);
    after = range.end();
  }
  const auto again = decode_pagemap(encode_pagemap(*pagemap));
  FUZZ_EXPECT(again.has_value() && *again == *pagemap);
  return 0;
}
