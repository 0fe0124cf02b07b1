// Placement: chooses the nodes for the replicas of a slab.
//
// Power of two choices: of two random nodes, take the one with more free slabs. This keeps the
// fullest node within O(log log n) of the mean (Mitzenmacher, "The Power of Two Choices in
// Randomized Load Balancing", IEEE TPDS 12(10), 2001) without herding to the emptiest node.
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

  // choice[s][r] is the index of the node for replica r of slab s. The nodes of one slab are
  // distinct, and in distinct domains: domains[n] is that of node n; empty: each node is one. No
  // node is chosen more often than it has free slabs. If the random choices fail,
  // place_emptiest_first() decides; it finds a placement if one exists. nullopt: none exists.
  std::optional<std::vector<std::vector<size_t>>> place(const std::vector<uint32_t>& free_slabs,
                                                        size_t slabs, uint32_t replicas,
                                                        const std::vector<uint32_t>& domains = {});

  uint64_t next_random() { return random_(); }

 private:
  using Choices = std::vector<std::vector<size_t>>;
  std::optional<Choices> place_randomly(std::vector<uint32_t> free_slabs,
                                        const std::vector<uint32_t>& domains, size_t slabs,
                                        uint32_t replicas);
  size_t below(size_t bound);

  std::mt19937_64 random_;
};

}  // namespace farpage::coordinator
