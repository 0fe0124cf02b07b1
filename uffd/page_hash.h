// A hash of 64 bits of one page, which the pager and an injected agent compute.
//
// In a header, and of general registers only: the agent is one piece of code that calls nothing and
// has no constants in memory (inject/agent_code.cc). Two pages that differ have the same hash with
// a chance of some 2^-64; not if somebody wants them to.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace farpage::uffd {

// The two halves of the product: the step of wyhash (Wang Yi, github.com/wangyi-fudan/wyhash).
[[gnu::always_inline]] inline uint64_t folded_product(uint64_t a, uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Four chains, so that the processor works at several products at once.
[[gnu::always_inline]] inline uint64_t hash_page(const void* page) {
  using Word [[gnu::may_alias]] = uint64_t;
  const auto* words = static_cast<const Word*>(page);
  uint64_t a = 0xa0761d6478bd642f;
  uint64_t b = 0xe7037ed1a0b428db;
  uint64_t c = 0x8ebc6af09c88c6e3;
  uint64_t d = 0x589965cc75374cc3;
  for (uint64_t i = 0; i < kPageBytes / sizeof(uint64_t); i += 8) {
    a = folded_product(words[i] ^ 0x9e3779b97f4a7c15, words[i + 1] ^ a);
    b = folded_product(words[i + 2] ^ 0xbf58476d1ce4e5b9, words[i + 3] ^ b);
    c = folded_product(words[i + 4] ^ 0x94d049bb133111eb, words[i + 5] ^ c);
    d = folded_product(words[i + 6] ^ 0xd6e8feb86659fd93, words[i + 7] ^ d);
  }
  return folded_product(a ^ 0xa0761d6478bd642f, b ^ c) ^ folded_product(c ^ 0xe7037ed1a0b428db, d);
}

// Of several pages, in their order: `so_far` is 0 before the first one.
[[gnu::always_inline]] inline uint64_t hash_of_pages(uint64_t so_far, uint64_t page_hash) {
  return folded_product(so_far ^ 0x9e3779b97f4a7c15, page_hash ^ 0xbf58476d1ce4e5b9);
}

}  // namespace farpage::uffd
