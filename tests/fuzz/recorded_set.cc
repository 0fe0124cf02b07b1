// The file of a recorded set. Its first byte says how many pages the image has, and whether the
// checksum is made right, so that what is behind it is reached.
#define XXH_INLINE_ALL
#include "snapshot/recorded_set.h"

#include <xxhash.h>

#include <cstring>
#include <span>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

using farpage::snapshot::RecordedSet;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint64_t pages = data[0] / 2;
  const std::string digest(64, 'a');
  const auto* begin = reinterpret_cast<const std::byte*>(data + 1);
  std::vector<std::byte> file(begin, begin + (size - 1));
  if (data[0] % 2 != 0) {
    // A head as it is written, before bytes of the fuzzer's choice.
    std::vector<std::byte> right = RecordedSet(digest, pages).encode();
    const size_t head = right.size() - (pages + 1) / 2;
    for (size_t i = head; i < right.size() && i - head < file.size(); ++i)
      right[i] = file[i - head];
    const uint64_t checksum = XXH3_64bits(right.data() + head, right.size() - head);
    std::memcpy(right.data() + 2 * sizeof(uint64_t), &checksum, sizeof checksum);
    file = std::move(right);
  }
  const auto set = RecordedSet::decode(file, digest, pages);
  FUZZ_EXPECT(set.has_value() || data[0] % 2 == 0);
  if (!set) return 0;
  const std::vector<uint32_t> order = set->in_order();
  FUZZ_EXPECT(order.size() == set->size());
  std::vector<bool> seen(pages, false);
  for (const uint32_t page : order) {
    FUZZ_EXPECT(page < pages && !seen[page]);
    seen[page] = true;
  }
  const auto again = RecordedSet::decode(set->encode(), digest, pages);
  FUZZ_EXPECT(again.has_value() && again->in_order() == order);
  return 0;
}
