// Prefetcher: READs ahead of a trend and of the neighbours of a page, on separate channels, so that
// no demand READ queues behind them. Pages with a compressed copy come from that.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "pager/fault/cluster.h"
#include "pager/fault/trend.h"
#include "pager/links/link_port.h"
#include "pager/links/posting.h"
#include "pager/target.h"

namespace farpage::pager {

// Size of the batch fetched ahead of a stream: a small part of the budget, and at most `depth`
// (PagerOptions::prefetch_depth).
constexpr uint32_t prefetch_limit(uint64_t budget_pages, uint32_t depth) {
  constexpr uint64_t kBatchesInBudget = 128;
  return static_cast<uint32_t>(std::min<uint64_t>(budget_pages / kBatchesInBudget, depth));
}

// Threads: the worker that owns it. Takes only room that faults do not need (Budget), and never
// makes a fault wait for longer than the READ takes: when a prefetch fails, its pages are Remote
// again and the threads that wait for them are woken.
class Prefetcher {
 public:
  static constexpr size_t kRuns = 16;  // two windows of single pages, or of kMaxPrefetchDepth
  static constexpr size_t kRunPages = 16;
  static constexpr size_t kBufferBytes = kRuns * kRunPages * kPageBytes;

  // `worker`: its index.
  Prefetcher(LinkPort& port, uint32_t worker);

  // Starts as much of the plan as there is room for.
  void start(Target& target, const PrefetchPlan& plan);
  void start(Target& target, const Cluster& cluster);
  bool progress();
  // As Fetcher.
  bool take_refused() { return std::exchange(refused_, false); }
  void leave_closing();
  size_t outstanding() const { return busy_; }

 private:
  enum class Step : uint8_t { kFree, kHasCopies, kOnWire, kToInstall };
  struct Run {
    Step step = Step::kFree;
    Target* target = nullptr;  // null: it was removed while the READ was on the wire
    PageIndex first;
    uint32_t pages = 0;
    const ReplicaLease* replica = nullptr;  // of the READ
    bool has_copies = false;                // all of its pages, or none
    bool of_cluster = false;
    uffd::Protection protection = uffd::Protection::kWriteProtected;
    std::array<PageWord, kRunPages> words;
  };

  std::span<std::byte> bytes_of(size_t run, uint32_t pages) const {
    return port_.buffer().subspan(run * kRunPages * kPageBytes, pages * kPageBytes);
  }
  enum class Direction : uint8_t { kUp, kDown };
  // Claims up to `limit` neighbours from `first`, at most `room`, which it takes from that, and
  // starts to fetch them. False: none can be fetched now.
  bool begin(size_t index, Target& target, PageIndex first, uint32_t limit, uint32_t& room,
             Direction direction = Direction::kUp);
  // Claims up to `limit` neighbours from `first`, as far as they are remote, and all or none of
  // them have a compressed copy. There is room for them.
  void claim(Run& run, PageIndex first, uint32_t limit, Direction direction);
  // Adds the READ of a claimed run to the batch; false: no replica can be used now.
  bool gather(size_t index);
  void post_gathered();
  bool take_copies();
  bool take_copies_of(size_t index);
  void complete(size_t index, rdma::CompletionStatus status);
  static void land(Run& run);
  // Of a READ that has ended: reports what is not right.
  bool has_right_bytes(size_t index);
  void install(size_t index);
  void abandon(Run& run);
  // As abandon(), for a run that was gathered.
  void fail(Run& run);
  static bool any_discarded(const Run& run);
  void finish(Run& run, uint32_t page, PageState state, uint32_t flags = 0);

  void release(Run& run);

  LinkPort& port_;
  const uint32_t worker_;
  std::array<Run, kRuns> runs_{};
  Posting<kRuns> posting_{port_};
  bool refused_ = false;
  size_t busy_ = 0;
};

}  // namespace farpage::pager
