// hash_join: an equijoin of two tables in memory, by a hash table on the smaller one.
//
//   hash_join ROWS
//
// Makes ROWS rows of 32 bytes, builds a chained hash table on their keys, and probes it with as
// many rows that are made on the way; half of them find a partner. Sums the joined amounts by
// group. Prints the number of joined rows and a checksum; status 1 when the number is not what the
// keys give.
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/touch_order.h"

namespace {

constexpr uint64_t kGroups = 4096;
constexpr uint32_t kNone = ~uint32_t{0};

struct Row {
  uint64_t key = 0;
  uint64_t amount = 0;
  uint64_t group = 0;
  uint32_t next = kNone;  // row of the same bucket
};

uint64_t hash_of(uint64_t key) {
  key = (key ^ (key >> 31)) * 0x7fb5d329728ea185;
  return key ^ (key >> 29);
}

// Keys are the even numbers, each once; their order does not matter, because the hash scatters
// them.
std::vector<Row> make_rows(uint64_t count) {
  std::vector<Row> rows(count);
  farpage::bench::Random random(1);
  for (uint64_t i = 0; i < count; ++i)
    rows[i] = {.key = 2 * i, .amount = random.below(1000), .group = random.below(kGroups)};
  return rows;
}

// The first row of each bucket.
std::vector<uint32_t> build(std::vector<Row>& rows) {
  std::vector<uint32_t> buckets(std::bit_ceil(rows.size()), kNone);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    uint32_t& first = buckets[hash_of(rows[i].key) & (buckets.size() - 1)];
    rows[i].next = first;
    first = i;
  }
  return buckets;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t count = argc == 2 ? std::strtoull(argv[1], nullptr, 10) : 0;
  if (count < 1 || count >= kNone) {
    std::fputs("usage: hash_join ROWS\n", stderr);
    return 2;
  }
  std::vector<Row> rows = make_rows(count);
  const std::vector<uint32_t> buckets = build(rows);
  std::vector<uint64_t> sums(kGroups);
  farpage::bench::Random random(2);
  uint64_t joined = 0, expected = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t key = random.below(2 * count), price = random.below(100);
    if (key % 2 == 0) ++expected;
    for (uint32_t at = buckets[hash_of(key) & (buckets.size() - 1)]; at != kNone;
         at = rows[at].next)
      if (rows[at].key == key) {
        sums[rows[at].group] += rows[at].amount * price;
        ++joined;
      }
  }
  uint64_t checksum = 0;
  for (const uint64_t sum : sums) checksum = checksum * 31 + sum;
  fmt::print("{} joined, {:016x}\n", joined, checksum);
  return joined == expected ? 0 : 1;
}
