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
  // A whole batch. True: it began, and has ended.
  bool evict() { return begin() && batch.finish(); }
  // A batch of one page, whose drop the program has not done yet.
  [[nodiscard]] bool begin_slow_drop(uint64_t page) {
    let_nodes_answer();
    make_dirty(pages_of(page));
    space.drop_later();
    return begin() && !batch.finish() && batch.is_dropping();
  }
  // Clean pages that were installed so many epochs ago.
  void make_of_age(uffd::PageRun run, uint8_t age) {
    make_clean(run);
    for (uint64_t page = run.first.value; page < run.first.value + run.pages; ++page) {
      const PageWord word = table.load(PageIndex{page});
      EXPECT_TRUE(table.set_age(PageIndex{page}, word, kNow - age, 0));
    }
  }
  // The only node's channel takes so many operations at a time.
  void narrow_channel(uint32_t operations) {
    (void)port->channel(NodeIndex{0});
    node().break_channels();
    (void)port->channel(NodeIndex{0});
    connect(*port, 0, {.operations_in_flight = operations, .operation_bytes = 1U << 20});
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
  uint64_t dropped() const { return evicted().pages_dropped(); }

  std::unique_ptr<LinkPort> port = make_port(EvictionBatch::kBufferBytes);
  EvictionBatch batch{engine, *port};

 private:
  static TargetRigOptions with_little_room(TargetRigOptions options) {
    if (options.budget_pages == TargetRigOptions().budget_pages) options.budget_pages = 1;
    return options;
  }
};

}  // namespace farpage::pager
