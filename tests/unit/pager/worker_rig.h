// WorkerRig: a TargetRig whose faults a FaultWorker answers.
#pragma once

#include <memory>
#include <vector>

#include "pager/fault/fault_worker.h"
#include "target_rig.h"

namespace farpage::pager {

// Threads: the test's; each worker has its own, from start() on.
class WorkerRig : public TargetRig {
 public:
  explicit WorkerRig(const TargetRigOptions& options = {})
      : TargetRig(options),
        wake_policy_(std::move(*WakePolicy::create(options.workers))),
        workers_wanted_(options.workers) {
    engine.pressure.on_room = [this](uint64_t workers) { wake_policy_->wake(workers); };
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
    EXPECT_TRUE(engine.targets.add(target, space.event_descriptor()));
  }
  ~WorkerRig() { stop(); }

  // What the program has done before is in the queue: a test can prepare states that pass quickly.
  void start() {
    for (uint32_t i = 0; i < workers_wanted_; ++i) {
      demand_ports_.push_back(make_port(Fetcher::kBufferBytes));
      prefetch_ports_.push_back(make_port(Prefetcher::kBufferBytes));
      workers_.push_back(std::make_unique<FaultWorker>(
          engine, FaultWorker::Ports{*demand_ports_.back(), *prefetch_ports_.back()}, *wake_policy_,
          i, /*cpu=*/-1));
    }
  }
  void stop() {
    engine.workers_stopping = true;
    wake_policy_->stop();
    workers_.clear();
  }
  // The program's threads have gone on.
  [[nodiscard]] bool goes_on(uint32_t thread = 1) {
    return becomes_true([&] { return !space.sleeps(thread); });
  }
  // Every message and event was read, and handled once. What could not be answered is parked.
  [[nodiscard]] bool has_handled_all() {
    const bool read = becomes_true([&] { return space.unread() == 0; });
    engine.event_readers.wait_until_handled();
    return read;
  }
  // A fault of the target is parked, or a fetch is under way.
  bool holds_a_fault() const { return target.is_held(); }
  // Every fault is answered, and every prefetch has ended.
  [[nodiscard]] bool is_idle() {
    return becomes_true([&] {
      if (space.unread() > 0) return false;
      engine.event_readers.wait_until_handled();  // a fetch ends before its prefetch begins
      return !target.is_held();
    });
  }
  // As Engine::remove().
  void remove(Target& removed) {
    removed.closing = true;
    (void)engine.targets.remove(removed);
    engine.removals.fetch_add(1);
    wake_policy_->look_again();
  }

 private:
  const std::unique_ptr<WakePolicy> wake_policy_;
  const uint32_t workers_wanted_;
  std::vector<std::unique_ptr<LinkPort>> demand_ports_, prefetch_ports_;
  std::vector<std::unique_ptr<FaultWorker>> workers_;
};

}  // namespace farpage::pager
