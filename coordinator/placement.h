// Placement: on which nodes the replicas of a slab go.
//
// The power of two choices: of two nodes taken at random the one with more free slabs wins, which
// keeps the fullest node within O(log log n) of the mean (Mitzenmacher, "The Power of Two Choices
// in Randomized Load Balancing", IEEE TPDS 12(10), 2001) without a herd running to the emptiest
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace farpage::coordinator {

// Threads: one at a time.
class Placement {
 public:
  explicit Placement(uint64_t seed) : random_(seed) {}

  // choice[s][r] is the index of the node for replica r of slab s; the nodes of one slab are
  // distinct, and no node is chosen more often than it has free slabs. Nothing when that is
  // impossible: when the random choices run into a dead end, the fullest-first choice, which finds
  // a placement if there is any, decides.
  std::optional<std::vector<std::vector<size_t>>> place(const std::vector<uint32_t>& free_slabs,
                                                        size_t slabs, uint32_t replicas);

  uint64_t next_random() { return random_(); }

 private:
  using Choices = std::vector<std::vector<size_t>>;
  std::optional<Choices> place_randomly(std::vector<uint32_t> free_slabs, size_t slabs,
                                        uint32_t replicas);
  size_t below(size_t bound);

  std::mt19937_64 random_;
};

}  // namespace farpage::coordinator
