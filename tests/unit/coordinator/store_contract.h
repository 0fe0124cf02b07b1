// What every store must do, with records that use all of their fields.
#pragma once

#include <gtest/gtest.h>

#include "coordinator/store.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {

inline Changes some_changes() {
  Changes changes;
  changes.nodes[NodeId{"n1"}] =
      NodeRecord{test_node("n1", 4, ~uint64_t{0}), NodeService::kDraining};
  changes.regions[RegionId{"r1"}] = RegionRecord{RegionId{"r1"}, "name", 2, kMinSlabBytes};
  Lease lease;
  lease.slab = SlabIndex{3};
  lease.replica = 1;
  lease.node = NodeId{"n1"};
  lease.node_slab = 2;
  lease.address = RemoteAddress{~uint64_t{0} - 4095};
  lease.bytes = kMinSlabBytes;
  lease.rkeys = {{rdma::TransportKind::kTcp, RemoteKey{~uint32_t{0}, {5, ~uint64_t{0}}}},
                 {rdma::TransportKind::kVerbs, RemoteKey{0}}};
  lease.generation = Generation{9};
  lease.lost = true;
  changes.leases[LeaseKey{RegionId{"r1"}, SlabIndex{3}, 1}] = lease;
  lease.lost = false;
  lease.stale = true;
  lease.replica = 0;
  changes.leases[LeaseKey{RegionId{"r1"}, SlabIndex{3}, 0}] = lease;
  lease.stale = false;
  lease.filling = true;
  changes.leases[LeaseKey{RegionId{"r1"}, SlabIndex{3}, kFillingReplica}] = lease;
  Revocation revocation;
  revocation.id = 5;
  revocation.node = NodeId{"n1"};
  revocation.incarnation = ~uint64_t{0};
  revocation.agent_url = "http://n1:7071";
  revocation.node_slab = 1;
  revocation.generation = Generation{8};
  revocation.asked = SlabLeaseRequest{RegionId{"r1"}, SlabIndex{4}, 1};
  changes.revocations[5] = revocation;
  changes.images[ImageId{"vm"}] = ImageRecord{ImageId{"vm"},
                                              RegionId{"r1"},
                                              ImageId{"base"},
                                              uint64_t{1} << 40,
                                              ImageState::kComplete,
                                              3,
                                              77,
                                              "abc"};
  changes.last_sequence = 1234;
  return changes;
}

inline void expect_snapshot_of_some_changes(const Snapshot& snapshot) {
  ASSERT_EQ(snapshot.nodes.size(), 1U);
  EXPECT_EQ(snapshot.nodes[0].join.incarnation, ~uint64_t{0});
  EXPECT_EQ(snapshot.nodes[0].join.transports, test_node("n1", 4).transports);
  EXPECT_TRUE(snapshot.nodes[0].service == NodeService::kDraining);
  ASSERT_EQ(snapshot.regions.size(), 1U);
  EXPECT_EQ(snapshot.regions[0].replicas, 2U);
  ASSERT_EQ(snapshot.leases.size(), 3U);
  const auto lease_of = [&](uint32_t replica) {
    return snapshot.leases.at({RegionId{"r1"}, SlabIndex{3}, replica});
  };
  EXPECT_TRUE(lease_of(0).stale);
  EXPECT_FALSE(lease_of(0).lost || lease_of(0).filling);
  EXPECT_TRUE(lease_of(kFillingReplica).filling);
  EXPECT_EQ(lease_of(kFillingReplica).replica, 0U);
  const Lease lease = lease_of(1);
  EXPECT_EQ(lease.address.value, ~uint64_t{0} - 4095);
  EXPECT_EQ(lease.rkeys.size(), 2U);
  EXPECT_EQ(lease.rkeys.at(rdma::TransportKind::kTcp),
            (RemoteKey{~uint32_t{0}, {5, ~uint64_t{0}}}));
  EXPECT_EQ(lease.node_slab, 2U);
  EXPECT_TRUE(lease.lost);
  ASSERT_EQ(snapshot.revocations.size(), 1U);
  EXPECT_EQ(snapshot.revocations[0].generation, Generation{8});
  EXPECT_EQ(snapshot.revocations[0].asked.slab, SlabIndex{4});
  ASSERT_EQ(snapshot.images.size(), 1U);
  const ImageRecord& image = snapshot.images[0];
  EXPECT_EQ(image.id, ImageId{"vm"});
  EXPECT_EQ(image.region, RegionId{"r1"});
  EXPECT_EQ(image.base, ImageId{"base"});
  EXPECT_EQ(image.bytes, uint64_t{1} << 40);
  EXPECT_EQ(image.state, ImageState::kComplete);
  EXPECT_EQ(image.upload, 3U);
  EXPECT_EQ(image.pages, 77U);
  EXPECT_EQ(image.digest, "abc");
  EXPECT_EQ(snapshot.last_sequence, 1234U);
}

inline void expect_some_changes(Store& store) {
  const auto snapshot = store.load();
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().message();
  expect_snapshot_of_some_changes(*snapshot);
}

inline Changes removal_of_all() {
  Changes changes = some_changes();
  for (auto& [id, record] : changes.nodes) record.reset();
  for (auto& [id, record] : changes.regions) record.reset();
  for (auto& [key, lease] : changes.leases) lease.reset();
  for (auto& [id, revocation] : changes.revocations) revocation.reset();
  for (auto& [id, image] : changes.images) image.reset();
  changes.last_sequence = 2000;
  return changes;
}

inline void expect_put_and_remove(Store& store) {
  ASSERT_TRUE(store.write(some_changes()).has_value());
  ASSERT_TRUE(store.write(some_changes()).has_value());  // again: the same
  expect_some_changes(store);
  ASSERT_TRUE(store.write(removal_of_all()).has_value());
  const auto empty = store.load();
  EXPECT_TRUE(empty->nodes.empty() && empty->regions.empty() && empty->leases.empty() &&
              empty->revocations.empty() && empty->images.empty());
  EXPECT_EQ(empty->last_sequence, 2000U);
}

}  // namespace farpage::coordinator
