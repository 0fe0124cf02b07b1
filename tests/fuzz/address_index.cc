// The index at the start of the image of a checkpoint. The first two bytes say how many pages the
// image has; the rest is padded to whole pages behind a header that is right.
#include "criu/address_index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

using farpage::kPageBytes;
using farpage::criu::AddressIndex;
using farpage::criu::IndexedRange;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t image_pages = 1 + data[0] + 256U * data[1];
  const auto* begin = reinterpret_cast<const std::byte*>(data + 2);
  std::vector<std::byte> bytes(begin, begin + (size - 2));
  (void)AddressIndex::decode(bytes, image_pages);

  const auto empty = AddressIndex::create({});
  FUZZ_EXPECT(empty.has_value());
  const std::vector<std::byte> head = empty->encode();
  bytes.insert(bytes.begin(), head.begin(), head.begin() + sizeof(IndexedRange));
  const uint64_t ranges = bytes.size() / sizeof(IndexedRange) - 1;
  std::memcpy(bytes.data() + sizeof(uint64_t), &ranges, sizeof ranges);
  bytes.resize((bytes.size() + kPageBytes - 1) / kPageBytes * kPageBytes);
  const auto index = AddressIndex::decode(bytes, image_pages);
  if (!index) return 0;
  FUZZ_EXPECT(index->ranges().size() == ranges && index->pages() <= image_pages);
  for (const IndexedRange& range : index->ranges()) {
    for (const uint64_t address : {range.address, range.end() - kPageBytes}) {
      const auto place = index->find(range.process, address);
      FUZZ_EXPECT(place && place->pages > 0);
      FUZZ_EXPECT(place->page >= index->pages() && place->page + place->pages <= image_pages);
      FUZZ_EXPECT(address + place->pages * kPageBytes == range.end());
    }
  }
  const std::vector<std::byte> again = index->encode();
  FUZZ_EXPECT(again.size() <= bytes.size() &&
              std::memcmp(again.data(), bytes.data(), (ranges + 1) * sizeof(IndexedRange)) == 0);
  return 0;
}
