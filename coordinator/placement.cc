#include "coordinator/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace farpage::coordinator {
namespace {

using Choices = std::vector<std::vector<size_t>>;

// Always takes the nodes with the most free slabs: optimal for distinct replicas, but it herds.
std::optional<Choices> place_emptiest_first(std::vector<uint32_t> free_slabs, size_t slabs,
                                            uint32_t replicas) {
  if (free_slabs.size() < replicas) return std::nullopt;
  std::vector<size_t> order(free_slabs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Choices choices;
  for (size_t slab = 0; slab < slabs; ++slab) {
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(replicas);
    std::partial_sort(order.begin(), last, order.end(),
                      [&](size_t a, size_t b) { return free_slabs[a] > free_slabs[b]; });
    if (free_slabs[order[replicas - 1]] == 0) return std::nullopt;
    choices.emplace_back(order.begin(), last);
    for (const size_t node : choices.back()) --free_slabs[node];
  }
  return choices;
}

}  // namespace

size_t Placement::below(size_t bound) {
  return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
}

std::optional<Choices> Placement::place_randomly(std::vector<uint32_t> free_slabs, size_t slabs,
                                                 uint32_t replicas) {
  Choices choices;
  std::vector<size_t> candidates;
  for (size_t node = 0; node < free_slabs.size(); ++node)
    if (free_slabs[node] > 0) candidates.push_back(node);
  for (size_t slab = 0; slab < slabs; ++slab) {
    auto& chosen = choices.emplace_back();
    // The first in_front candidates have no replica of this slab yet.
    size_t in_front = candidates.size();
    while (chosen.size() < replicas) {
      if (in_front == 0) return std::nullopt;
      size_t winner = below(in_front);
      if (in_front > 1) {
        // rival != winner.
        const size_t rival = (winner + 1 + below(in_front - 1)) % in_front;
        if (free_slabs[candidates[rival]] > free_slabs[candidates[winner]]) winner = rival;
      }
      chosen.push_back(candidates[winner]);
      --free_slabs[candidates[winner]];
      std::swap(candidates[winner], candidates[--in_front]);
    }
    for (size_t i = candidates.size(); i > in_front; --i) {
      if (free_slabs[candidates[i - 1]] > 0) continue;
      std::swap(candidates[i - 1], candidates.back());
      candidates.pop_back();
    }
  }
  return choices;
}

std::optional<Choices> Placement::place(const std::vector<uint32_t>& free_slabs, size_t slabs,
                                        uint32_t replicas) {
  const uint64_t total = std::accumulate(free_slabs.begin(), free_slabs.end(), uint64_t{0});
  if (total < slabs * replicas) return std::nullopt;
  if (auto choices = place_randomly(free_slabs, slabs, replicas)) return choices;
  return place_emptiest_first(free_slabs, slabs, replicas);
}

}  // namespace farpage::coordinator
