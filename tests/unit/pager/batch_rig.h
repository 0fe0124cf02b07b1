// BatchRig: an EvictionBatch of a TargetRig.
#pragma once

#include "pager/evict/eviction_batch.h"
#include "target_rig.h"

namespace farpage::pager {

// With a budget of one page: everything that may go goes.
class BatchRig : public TargetRig {
 public:
  explicit BatchRig(TargetRigOptions options = {}) : TargetRig(with_little_room(options)) {}

  bool begin(EvictionBatch::Size most = EvictionBatch::kLarge) {
    return batch.begin(target, most, Nanoseconds(0));
  }
  // Each node acknowledges everything at once.
  void let_nodes_answer() {
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
  }
  // From now on no patience is left with what is outstanding.
  void let_patience_end(size_t node) {
    engine.peers[NodeIndex{static_cast<uint16_t>(node)}].wait.since =
        SteadyClock::read() - Seconds(2);
  }
  uint64_t dropped() const {
    return evicted().pages_written.get() + evicted().pages_clean.get() + evicted().pages_zero.get();
  }

  std::unique_ptr<LinkPort> port = make_port(EvictionBatch::kBufferBytes);
  EvictionBatch batch{engine, *port};

 private:
  static TargetRigOptions with_little_room(TargetRigOptions options) {
    if (options.budget_pages == TargetRigOptions().budget_pages) options.budget_pages = 1;
    return options;
  }
};

}  // namespace farpage::pager
