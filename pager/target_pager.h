// TargetPager: one target of an engine, with all that it owns. The implementation of Pager.
#pragma once

#include <utility>
#include <vector>

#include "base/doorbell.h"
#include "base/mutex.h"
#include "pager/engine_threads.h"
#include "pager/fork/fork_in_progress.h"
#include "pager/pager.h"

namespace farpage::pager {

// Threads: as Pager says; the calls of RegionOwner come from the borrower's thread. take_over(),
// start(), give_back() and own() belong to whoever creates it, before others know it. The engine
// outlives it, unless it owns the engine.
class TargetPager final : public Pager, private RegionOwner {
 public:
  // Takes space and image only on success. The target is not served yet. `record`: what is kept of
  // it.
  static Result<std::unique_ptr<TargetPager>> create(EngineThreads& engine,
                                                     const TargetOptions& options,
                                                     std::unique_ptr<uffd::AddressSpace>& space,
                                                     std::unique_ptr<ProcessImage>& image,
                                                     OnChild on_child, TargetRecord record);
  ~TargetPager() override;

  // The first process of a fork group: leases its first slab.
  Status open(Milliseconds patience) { return backing_regions_.open(patience); }
  // A forked child, with the pages that it has.
  void take_over(uint64_t age_clock);
  // A target of a dead engine, with the backing regions that it had made. kUnavailable: it has
  // ended.
  Status resume(BackingRegionList own, bool agent_ready);
  // Before resume(): it was between begin_fork() and end_fork(). `snapshot`: null without one.
  void go_on_forking(std::unique_ptr<ProcessImage> snapshot, size_t children);
  Status start();
  // After start() has failed: the pager is of no more use.
  void give_back(Inheritance& inheritance);
  // From now on this target owns its engine.
  void own(std::unique_ptr<Engine> engine) { own_engine_ = std::move(engine); }

  void discard(uffd::PageRun run) override;
  bool try_discard(uffd::PageRun run) override;
  Status add_extent(uint64_t begin, uint64_t end) override;
  Status cover(uint64_t begin, uint64_t end) override;
  Status adopt_present(uint64_t begin, uint64_t end) override;
  Status bring_back() override;
  void remove_extent(uint64_t begin, uint64_t end) override;
  bool pin(uffd::PageRun run) override;
  void unpin(uffd::PageRun run) override { parts_.pins.unpin(run); }
  void hint_cold(uffd::PageRun run) override;
  void hint_willneed(uffd::PageRun run) override;
  void advise(uffd::PageRun run, AccessPattern pattern) override {
    parts_.access.set(run, pattern);
  }
  Status set_local(uint64_t local_bytes) override;
  Status set_limit(uint64_t pages, uint64_t shared_pages) override;
  uint64_t limit_to_pin(uffd::PageRun run) const override;
  Status refresh_stored(const std::vector<coordinator::Lease>& leases) override;
  bool begin_fork() override;
  void end_fork(bool forked) override;
  bool is_forking() override;
  void child_found(std::unique_ptr<uffd::AddressSpace> child) override {
    fork_in_progress_.arrived(std::move(child));
  }
  int attention_descriptor() const override { return parts_.attention.fd(); }
  void adopt_children() override;
  bool has_arrivals() const override;
  void agent_ready(std::string name, uint64_t free_pages) override;
  bool wants_budget() const override { return target_.wants_budget.load(); }
  void begin_eviction() override;
  uint64_t guard_shared() override { return fork_in_progress_.guard_shared(); }
  void resolve(PageIndex page, uffd::FaultKind kind) override {
    engine_.resolve(target_, page, kind);
  }
  std::optional<uffd::FaultKind> next_fault(PageIndex page, bool write) const override;
  bool is_away(PageIndex page) const override;
  bool has_spare_room() const override { return !budget_.is_pressing(); }
  bool is_lost(PageIndex page) const override {
    return target_.table.load(page).state() == PageState::kLost;
  }
  uffd::AddressSpace& space() override { return *parts_.space; }
  bool target_gone() const override { return target_.gone.load(std::memory_order_acquire); }
  BudgetUse budget_use() const override;
  PagerStats stats() const override;
  std::shared_ptr<const TouchRecorder> recorder() const override { return target_.recorder; }
  Status check_invariants() const override;

 private:
  struct Parts {
    PagerOptions options;
    std::unique_ptr<uffd::AddressSpace> space;
    std::unique_ptr<ProcessImage> image;
    PinMap pins;
    AccessMap access;
    CompressedPages copies;
    Mapping shares;    // WorkerShare of each worker
    Mapping times;     // TargetTimes: only buckets that were used cost memory
    Mapping trends;    // TrendDetector, and
    Mapping clusters;  // ClusterChoice: cost no memory before the first fault on a remote page
    Doorbell attention;
  };
  TargetPager(EngineThreads& engine, uint64_t number, Parts parts, OnChild on_child);

  // -- RegionOwner --
  void node_wanted(NodeIndex node) override { engine_.node_wanted(node); }
  coordinator::Counters counters_of(const LeaseMap& backing_region) override;
  void leased() override;
  void replica_lost() override { target_.replicas_lost.fetch_add(1, std::memory_order_relaxed); }

  // Whether all that a child needs is where it will find it; may fetch every page.
  bool may_fork();
  Status check_checksums() const;
  uint64_t resident_pages() const;
  Status cover_now(uint64_t begin, uint64_t end);
  void forget_missing();
  void adopt_run(uffd::PageRun present);
  uint64_t limit_for(uint64_t pinned_pages) const;  // pages
  std::string too_much_is_pinned() const;
  PagerStats stats_of_target() const;

  // Order matters: a part uses earlier ones and is destroyed before them.
  std::unique_ptr<Engine> own_engine_;
  EngineThreads& engine_;
  Parts parts_;
  TargetKeeper keeper_;
  Mutex resize_mutex_;  // budget and pin limit change together
  Mutex extents_mutex_;
  // During a fork the child may have what the target gives up, under the
  // same numbers: extents stay until it is over.
  bool forking_ FARPAGE_GUARDED_BY(extents_mutex_) = false;
  std::vector<std::pair<uint64_t, uint64_t>> given_up_ FARPAGE_GUARDED_BY(extents_mutex_);
  Budget budget_;
  BackingRegions backing_regions_;
  Target target_;
  ForkInProgress fork_in_progress_;
  std::atomic<bool> started_{false};
  // A child: of what its parent had given up, but not told. Set before the first cover().
  std::atomic<bool> may_lack_memory_{false};
};

}  // namespace farpage::pager
