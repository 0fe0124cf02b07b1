// Replay: the number of misses of each replacement policy on a recorded trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/replay/replacement.h"

namespace farpage::bench {

// kPager: its replacement alone; kStreams: with prefetch of streams; kClusters: and of clusters.
enum class PolicyKind : uint8_t { kFifo, kClock, kLru, kS3Fifo, kPager, kStreams, kClusters };
inline constexpr PolicyKind kPolicyKinds[] = {
    PolicyKind::kFifo,  PolicyKind::kClock,   PolicyKind::kLru,     PolicyKind::kS3Fifo,
    PolicyKind::kPager, PolicyKind::kStreams, PolicyKind::kClusters};
std::string_view to_string(PolicyKind kind);

std::unique_ptr<ReplacementPolicy> make_policy(PolicyKind kind, uint64_t pages, uint64_t capacity);

// Counts the accesses after the warm-up.
struct PolicyResult {
  PolicyKind kind = PolicyKind::kFifo;
  uint64_t misses = 0;
  uint64_t reads = 0;  // misses of pages touched before; the other misses are zero pages
  PolicyCounts more{};
};
PolicyResult replay(PolicyKind kind, const AccessTrace& trace, uint64_t capacity);

struct ReplayResult {
  uint64_t capacity = 0;               // pages
  uint64_t accesses = 0;               // without the warm-up
  std::vector<PolicyResult> policies;  // in the order of kPolicyKinds

  const PolicyResult& of(PolicyKind kind) const { return policies[static_cast<size_t>(kind)]; }
  double miss_ratio(const PolicyResult& policy) const;
  // As multiples of what another policy needs; 0 when it needs none.
  double misses_to(PolicyKind kind, const PolicyResult& policy) const;
  double reads_to(PolicyKind kind, const PolicyResult& policy) const;
};
// With room for `local_percent` (1 to 100) of the pages that the trace has in use at its peak, at
// least one. kInvalid when the
// trace has only its warm-up.
Result<ReplayResult> replay_all(const AccessTrace& trace, uint32_t local_percent);

}  // namespace farpage::bench
