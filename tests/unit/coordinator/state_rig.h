// StateRig: a State alone. Its nodes grant what they are asked for, when a test says so.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/state.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {

// Threads: one.
class StateRig : public ::testing::Test {
 protected:
  static StateOptions options_of(uint64_t seed) {
    StateOptions options;
    options.seed = seed;
    options.longest_tick = Seconds(1 << 20);
    return options;
  }
  explicit StateRig(const StateOptions& options) : state_(options, Snapshot{}, Seconds(100)) {}
  void TearDown() override { EXPECT_EQ(state_.check(), ""); }

  std::vector<LeaseOutcome> granted(const std::vector<PlannedLease>& plan) {
    std::vector<LeaseOutcome> outcomes(plan.size());
    for (LeaseOutcome& outcome : outcomes) {
      outcome.answer = LeaseAnswer::kGranted;
      outcome.grant.bytes = kMinSlabBytes;
      outcome.grant.generation = Generation{++generation_};
      outcome.grant.address = RemoteAddress{4096};
    }
    return outcomes;
  }
  // The first slabs of the region.
  Status lease(const RegionId& region, uint32_t slabs) {
    std::vector<SlabIndex> wanted;
    for (uint32_t i = 0; i < slabs; ++i) wanted.push_back(SlabIndex{i});
    FARPAGE_TRY(plan, state_.begin_lease(now_, region, wanted, {}));
    return state_.commit_lease(plan, granted(plan));
  }
  // What a borrower asks for that knows of no loss but those that the coordinator does.
  RepairBegin repair_of(const RegionId& region, SlabIndex slab) const {
    RepairBegin repair{slab, {}, {}};
    const RegionInfo info = *state_.region(region);
    for (const Lease& lease : info.leases)
      if (lease.slab == slab && !lease.lost) repair.live.push_back(name_of(lease));
    return repair;
  }
  // A borrower's repair, from begin_repair() on.
  Status fill(const RegionId& region, SlabIndex slab, const std::vector<PlannedLease>& plan) {
    FARPAGE_TRY_VOID(state_.commit_lease(plan, granted(plan)));
    FARPAGE_TRY(begun, state_.repair_begun(region, slab));
    FARPAGE_TRY_VOID(state_.complete_repair(now_, region, {slab, name_of(begun.filling)}));
    for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
    return {};
  }

  Instant now_ = Seconds(100);
  uint32_t generation_ = 0;
  State state_;
};

}  // namespace farpage::coordinator
