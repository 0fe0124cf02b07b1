// The map of an image as nodes have it. The first two bytes say how many pages and generations the
// image has; with the digest that belongs to the checksums, so that places are looked at.
#include "image/page_map.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

using farpage::Mapping;
using farpage::image::PageEntry;
using farpage::image::PageMap;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t pages = 1 + data[0] * 2U;
  std::vector<uint64_t> stored;
  for (uint32_t i = 0; i <= data[1] % 4U; ++i) stored.push_back(data[1] / 4U + i);
  auto made = PageMap::create(pages);
  FUZZ_EXPECT(made.has_value());
  const size_t bytes = std::min<size_t>(size - 2, pages * sizeof(PageEntry));
  for (uint64_t page = 0; page * sizeof(PageEntry) < bytes; ++page) {
    PageEntry entry;
    const size_t at = page * sizeof entry;
    std::memcpy(&entry, data + 2 + at, std::min(bytes - at, sizeof entry));
    made->set(page, entry);
  }
  const auto copy = [&](size_t length) {
    auto memory = Mapping::anonymous(std::max<size_t>(length, 1));
    FUZZ_EXPECT(memory.has_value());
    std::memcpy(memory->data(), made->encode().data(), length);
    return std::move(*memory);
  };
  const std::string digest = made->digest();
  FUZZ_EXPECT(!PageMap::decode(copy(made->encode().size()), pages, stored, std::string(64, '0')));
  if (made->encode().size() > farpage::kPageBytes)
    FUZZ_EXPECT(!PageMap::decode(copy(farpage::kPageBytes), pages, stored, digest));
  const auto map = PageMap::decode(copy(made->encode().size()), pages, stored, digest);
  bool is_right = true;
  for (uint64_t page = 0; page < pages; ++page) {
    const PageEntry& entry = (*made)[page];
    is_right = is_right && (!entry.is_stored() || (entry.generation < stored.size() &&
                                                   entry.slot < stored[entry.generation]));
  }
  FUZZ_EXPECT(map.has_value() == is_right);
  if (map) FUZZ_EXPECT(map->pages() == pages && map->digest() == digest);
  return 0;
}
