#include "bench/replay/replay.h"

#include <algorithm>

#include "base/check.h"
#include "bench/replay/pager_model.h"

namespace farpage::bench {

std::string_view to_string(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kFifo:
      return "fifo";
    case PolicyKind::kClock:
      return "clock";
    case PolicyKind::kLru:
      return "lru";
    case PolicyKind::kS3Fifo:
      return "s3-fifo";
    case PolicyKind::kPager:
      return "pager";
    case PolicyKind::kStreams:
      return "streams";
    case PolicyKind::kClusters:
      return "clusters";
  }
  return "unknown";
}

std::unique_ptr<ReplacementPolicy> make_policy(PolicyKind kind, uint64_t pages, uint64_t capacity) {
  switch (kind) {
    case PolicyKind::kFifo:
      return std::make_unique<Fifo>(pages, capacity);
    case PolicyKind::kClock:
      return std::make_unique<Clock>(pages, capacity);
    case PolicyKind::kLru:
      return std::make_unique<Lru>(pages, capacity);
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3Fifo>(pages, capacity);
    case PolicyKind::kPager:
      break;
    case PolicyKind::kStreams:
      return std::make_unique<PagerModel>(pages, capacity, Ahead::kStreams);
    case PolicyKind::kClusters:
      return std::make_unique<PagerModel>(pages, capacity, Ahead::kClusters);
  }
  return std::make_unique<PagerModel>(pages, capacity);
}

PolicyResult replay(PolicyKind kind, const AccessTrace& trace, uint64_t capacity) {
  const auto policy = make_policy(kind, trace.pages(), capacity);
  std::vector<bool> touched(trace.pages());
  PolicyResult result{.kind = kind};
  PolicyCounts before;
  for (uint64_t i = 0; i < trace.size(); ++i) {
    if (i == trace.warm_up()) before = policy->counts();
    const PageAccess access = trace[i];
    if (access.kind == AccessKind::kDiscard) {
      policy->discard(access.page);
      touched[access.page] = false;
      continue;
    }
    const bool missed = !policy->touch(access);
    if (missed && i >= trace.warm_up()) {
      ++result.misses;
      if (touched[access.page]) ++result.reads;
    }
    touched[access.page] = true;
  }
  result.more = policy->counts() - before;
  return result;
}

double ReplayResult::miss_ratio(const PolicyResult& policy) const {
  return static_cast<double>(policy.misses) / static_cast<double>(accesses);
}

double ReplayResult::misses_to(PolicyKind kind, const PolicyResult& policy) const {
  for (const PolicyResult& other : policies)
    if (other.kind == kind && other.misses > 0)
      return static_cast<double>(policy.misses) / static_cast<double>(other.misses);
  return 0;
}

double ReplayResult::reads_to(PolicyKind kind, const PolicyResult& policy) const {
  for (const PolicyResult& other : policies)
    if (other.kind == kind && other.reads > 0)
      return static_cast<double>(policy.reads) / static_cast<double>(other.reads);
  return 0;
}

Result<ReplayResult> replay_all(const AccessTrace& trace, uint32_t local_percent) {
  FARPAGE_CHECK(local_percent >= 1 && local_percent <= 100, "%u percent", local_percent);
  if (trace.warm_up() == trace.size())
    return fail(ErrorCode::kInvalid, "the trace has no accesses after its warm-up");
  ReplayResult result{.capacity = std::max<uint64_t>(1, trace.most_live() * local_percent / 100),
                      .accesses = trace.size() - trace.warm_up()};
  for (const PolicyKind kind : kPolicyKinds)
    result.policies.push_back(replay(kind, trace, result.capacity));
  return result;
}

}  // namespace farpage::bench
