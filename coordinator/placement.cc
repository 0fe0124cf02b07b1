#include "coordinator/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace farpage::coordinator {
namespace {

using Choices = std::vector<std::vector<size_t>>;

// Always takes the domains with the most free slabs, and in each the node with the most: optimal
// for distinct domains, but it herds.
std::optional<Choices> place_emptiest_first(std::vector<uint32_t> free_slabs,
                                            const std::vector<uint32_t>& domains, size_t slabs,
                                            uint32_t replicas) {
  std::map<uint32_t, std::vector<size_t>> nodes_of;
  std::map<uint32_t, uint64_t> free_of;
  for (size_t node = 0; node < free_slabs.size(); ++node) {
    nodes_of[domains[node]].push_back(node);
    free_of[domains[node]] += free_slabs[node];
  }
  if (nodes_of.size() < replicas) return std::nullopt;
  std::vector<uint32_t> order;
  for (const auto& [domain, nodes] : nodes_of) order.push_back(domain);
  Choices choices;
  for (size_t slab = 0; slab < slabs; ++slab) {
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(replicas);
    std::partial_sort(order.begin(), last, order.end(),
                      [&](uint32_t a, uint32_t b) { return free_of[a] > free_of[b]; });
    auto& chosen = choices.emplace_back();
    for (auto domain = order.begin(); domain != last; ++domain) {
      if (free_of[*domain] == 0) return std::nullopt;
      const size_t node = *std::ranges::max_element(
          nodes_of[*domain], {}, [&](size_t candidate) { return free_slabs[candidate]; });
      chosen.push_back(node);
      --free_slabs[node];
      --free_of[*domain];
    }
  }
  return choices;
}

}  // namespace

size_t Placement::below(size_t bound) {
  return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
}

std::optional<Choices> Placement::place_randomly(std::vector<uint32_t> free_slabs,
                                                 const std::vector<uint32_t>& domains, size_t slabs,
                                                 uint32_t replicas) {
  std::map<uint32_t, uint32_t> size_of;  // of each domain
  for (const uint32_t domain : domains) ++size_of[domain];
  Choices choices;
  std::vector<size_t> candidates;
  for (size_t node = 0; node < free_slabs.size(); ++node)
    if (free_slabs[node] > 0) candidates.push_back(node);
  for (size_t slab = 0; slab < slabs; ++slab) {
    auto& chosen = choices.emplace_back();
    // The first in_front candidates, and their domains, have no replica of this slab yet.
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
      const uint32_t domain = domains[candidates[winner]];
      std::swap(candidates[winner], candidates[--in_front]);
      if (size_of[domain] == 1) continue;
      for (size_t i = in_front; i > 0; --i)
        if (domains[candidates[i - 1]] == domain)
          std::swap(candidates[i - 1], candidates[--in_front]);
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
                                        uint32_t replicas, const std::vector<uint32_t>& domains) {
  std::vector<uint32_t> own(domains.empty() ? free_slabs.size() : 0);
  std::iota(own.begin(), own.end(), 0U);
  const std::vector<uint32_t>& domain_of = domains.empty() ? own : domains;
  const uint64_t total = std::accumulate(free_slabs.begin(), free_slabs.end(), uint64_t{0});
  if (total < slabs * replicas) return std::nullopt;
  if (auto choices = place_randomly(free_slabs, domain_of, slabs, replicas)) return choices;
  return place_emptiest_first(free_slabs, domain_of, slabs, replicas);
}

}  // namespace farpage::coordinator
