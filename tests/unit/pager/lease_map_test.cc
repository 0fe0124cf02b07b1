#include "pager/links/lease_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

constexpr uint64_t kSlab = uint64_t{2} << 20;  // 512 pages

std::unique_ptr<LeaseMap> make_map(uint64_t pages) {
  auto map = LeaseMap::create(pages, kSlab);
  EXPECT_TRUE(map.has_value());
  return std::move(*map);
}

using Replicas = std::vector<std::unique_ptr<const ReplicaLease>>;

std::unique_ptr<const ReplicaLease> make_replica(uint64_t address,
                                                 ReplicaState state = ReplicaState::kLive) {
  auto replica = std::make_unique<ReplicaLease>();
  replica->address = RemoteAddress{address};
  replica->state = state;
  return replica;
}

Replicas make_replicas(size_t count) {
  Replicas replicas;
  for (uint64_t i = 0; i < count; ++i) replicas.push_back(make_replica(i));
  return replicas;
}

TEST(LeaseMap, PageLiesAtTheSameOffsetInItsSlab) {
  const auto map = make_map(2000);
  EXPECT_EQ(map->slabs(), 4U);
  EXPECT_EQ(map->slab_of(PageIndex{511}).value, 0U);
  EXPECT_EQ(map->slab_of(PageIndex{512}).value, 1U);
  ReplicaLease replica;
  replica.address = RemoteAddress{0x10000000};
  EXPECT_EQ(map->address_of(replica, PageIndex{512}).value, 0x10000000U);
  EXPECT_EQ(map->address_of(replica, PageIndex{1023}).value, 0x10000000U + 511 * kPageBytes);
}

TEST(LeaseMap, UnleasedSlabHasNoLeaseAndIsWantedOnceTouched) {
  const auto map = make_map(5000);
  EXPECT_EQ(map->find(PageIndex{1}), nullptr);
  EXPECT_TRUE(map->wanted(10).empty());
  EXPECT_TRUE(map->touch(PageIndex{4000}));
  EXPECT_FALSE(map->touch(PageIndex{4001}));  // the same slab
  EXPECT_TRUE(map->touch(PageIndex{3}));
  EXPECT_EQ(map->wanted(10), (std::vector{SlabIndex{0}, SlabIndex{7}}));
  map->publish(SlabIndex{7}, make_replicas(1));
  EXPECT_EQ(map->wanted(10), (std::vector{SlabIndex{0}}));
  EXPECT_NE(map->find(PageIndex{4000}), nullptr);
}

TEST(LeaseMap, WantedIsLimited) {
  const auto map = make_map(512 * 100);
  for (uint64_t slab = 0; slab < 100; ++slab) map->touch(PageIndex{slab * 512});
  EXPECT_EQ(map->wanted(16).size(), 16U);
}

ReplicaLease filling_replica(uint64_t address) {
  ReplicaLease replica;
  replica.address = RemoteAddress{address};
  replica.state = ReplicaState::kFilling;
  return replica;
}

TEST(LeaseMap, AddedReplicaTakesThePlaceOfALostOneAndTheFormerLeaseStaysValid) {
  const auto map = make_map(512);
  map->publish(SlabIndex{0}, make_replicas(2));
  const SlabLease* held = map->find(PageIndex{0});
  EXPECT_TRUE(held->replicas[1]->end(ReplicaState::kLost));
  const ReplicaLease* added = map->add(SlabIndex{0}, filling_replica(7));
  ASSERT_NE(added, nullptr);
  const SlabLease* now = map->find(PageIndex{0});
  ASSERT_NE(now, held);
  EXPECT_EQ(now->replica_count, 2U);
  EXPECT_EQ(now->replicas[1], added);
  EXPECT_EQ(added->address.value, 7U);
  EXPECT_TRUE(added->is_written());
  EXPECT_EQ(now->live(), 1U);
  // Whoever holds the former lease learns of the loss of a replica that both have.
  EXPECT_TRUE(now->replicas[0]->end(ReplicaState::kLost));
  EXPECT_FALSE(held->replicas[0]->is_read());
}

TEST(LeaseMap, AddedReplicaIsBesideThoseThatAreWrittenUntilTheyEnd) {
  const auto map = make_map(512);
  map->publish(SlabIndex{0}, make_replicas(coordinator::kMaxReplicas));
  const ReplicaLease* first = map->add(SlabIndex{0}, filling_replica(7));
  ASSERT_NE(first, nullptr);
  const SlabLease* now = map->find(PageIndex{0});
  EXPECT_EQ(now->replica_count, SlabLease::kMaxPlaces);
  EXPECT_EQ(map->add(SlabIndex{0}, filling_replica(8)), nullptr) << "there is no place";
  EXPECT_TRUE(first->filled());
  EXPECT_TRUE(now->replicas[0]->end(ReplicaState::kWithdrawn));
  EXPECT_EQ(now->live(), coordinator::kMaxReplicas);
  const ReplicaLease* second = map->add(SlabIndex{0}, filling_replica(8));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(map->find(PageIndex{0})->replicas[0], second);
}

TEST(LeaseMap, NothingIsFilledWhereNoReplicaCanBeRead) {
  const auto map = make_map(512);
  EXPECT_EQ(map->add(SlabIndex{0}, filling_replica(7)), nullptr) << "there is no lease";
  map->publish(SlabIndex{0}, make_replicas(1));
  const SlabLease* lease = map->find(PageIndex{0});
  EXPECT_TRUE(lease->replicas[0]->end(ReplicaState::kLost));
  EXPECT_EQ(map->add(SlabIndex{0}, filling_replica(7)), nullptr);
  EXPECT_EQ(map->find(PageIndex{0}), lease);
  EXPECT_NE(map->add(SlabIndex{0}, *make_replicas(1).front()), nullptr) << "it needs no source";
}

TEST(LeaseMap, OneOfTwoReplicasThatEndForEachOtherStays) {
  const auto map = make_map(512);
  map->publish(SlabIndex{0}, make_replicas(2));
  const SlabLease* lease = map->find(PageIndex{0});
  const ReplicaLease& old = *lease->replicas[0];
  const ReplicaLease& by = *lease->replicas[1];
  EXPECT_TRUE(map->give_up(by, old));
  EXPECT_FALSE(map->withdraw(old, by)) << "it has been given up";
  EXPECT_TRUE(old.is_read());
  const ReplicaLease* added = map->add(SlabIndex{0}, filling_replica(7));
  ASSERT_NE(added, nullptr);
  EXPECT_FALSE(map->withdraw(old, *added)) << "it is still filling";
  EXPECT_TRUE(added->filled());
  EXPECT_TRUE(map->withdraw(old, *added));
  EXPECT_FALSE(map->give_up(*added, old)) << "what has the page is not used any more";
  EXPECT_TRUE(added->is_read());
}

TEST(LeaseMap, RoomForTheFirstLeaseOfEachSlabIsKept) {
  const auto map = make_map(512 * 3);
  map->publish(SlabIndex{0}, make_replicas(2));
  const ReplicaLease* added = nullptr;
  while ((added = map->add(SlabIndex{0}, filling_replica(7))) != nullptr)
    EXPECT_TRUE(added->end(ReplicaState::kLost));
  map->publish(SlabIndex{1}, make_replicas(coordinator::kMaxReplicas));
  map->publish(SlabIndex{2}, make_replicas(coordinator::kMaxReplicas));
  for (uint32_t slab = 0; slab < 3; ++slab) EXPECT_NE(map->find(SlabIndex{slab}), nullptr);
}

TEST(LeaseMap, ReplicaIsFoundByItsNodeAndGeneration) {
  SlabLease lease;
  ReplicaLease one;
  one.node = NodeIndex{3};
  one.generation = Generation{5};
  lease.replicas[lease.replica_count++] = &one;
  EXPECT_EQ(lease.find(NodeIndex{3}, Generation{5}), &one);
  EXPECT_EQ(lease.find(NodeIndex{3}, Generation{6}), nullptr);
  EXPECT_EQ(lease.find(NodeIndex{2}, Generation{5}), nullptr);
}

TEST(LeaseMap, AFillingReplicaIsWrittenAndReadOnlyWhenItIsFilled) {
  const auto filling = make_replica(1, ReplicaState::kFilling);
  EXPECT_TRUE(filling->is_written());
  EXPECT_FALSE(filling->is_read());
  EXPECT_TRUE(filling->filled());
  EXPECT_TRUE(filling->is_read());
  EXPECT_TRUE(filling->end(ReplicaState::kLost));
  EXPECT_FALSE(filling->end(ReplicaState::kWithdrawn));  // the first reason stays
  EXPECT_EQ(filling->state.load(), ReplicaState::kLost);
  EXPECT_FALSE(filling->filled());

  const auto ended = make_replica(1, ReplicaState::kFilling);
  EXPECT_TRUE(ended->end(ReplicaState::kWithdrawn));
  EXPECT_FALSE(ended->filled());
  EXPECT_FALSE(ended->is_written());
}

TEST(LeaseMap, ASuccessorFindsTheLeasesAndWhatBecameOfTheirReplicas) {
  constexpr uint64_t kPages = 2000;
  const Fd memory = std::move(*create_memfd("leases", LeaseMap::kept_bytes(kPages, kSlab)));
  const auto map_there = [&] {
    return std::move(*LeaseMap::create(
        kPages, kSlab,
        std::move(*Mapping::shared(memory.get(), LeaseMap::kept_bytes(kPages, kSlab))),
        SlotChecksums(std::move(*Mapping::anonymous(LeaseMap::checksums_bytes(kPages, kSlab))))));
  };
  const auto dead = map_there();
  dead->publish(SlabIndex{1}, make_replicas(2));
  dead->publish(SlabIndex{3}, make_replicas(1));
  const SlabLease* lease = dead->find(PageIndex{512});
  ASSERT_TRUE(lease->replicas[0]->end(ReplicaState::kLost));
  ASSERT_NE(dead->add(SlabIndex{1}, filling_replica(7)), nullptr);
  ASSERT_TRUE(dead->find(PageIndex{512})->replicas[0]->is_written());

  const auto found = map_there();
  EXPECT_EQ(found->leased_slabs(), 2U);
  EXPECT_EQ(found->find(PageIndex{0}), nullptr);
  EXPECT_TRUE(found->wanted(10).empty());
  const SlabLease* again = found->find(PageIndex{512});
  ASSERT_NE(again, nullptr);
  ASSERT_EQ(again->replica_count, 2U);
  EXPECT_EQ(again->replicas[0]->address.value, 7U);
  EXPECT_FALSE(again->replicas[0]->is_written()) << "nobody fills it any more";
  EXPECT_TRUE(again->replicas[1]->is_read());
  EXPECT_TRUE(again->replicas[1]->end(ReplicaState::kLost));
  EXPECT_FALSE(map_there()->find(PageIndex{512})->replicas[1]->is_read());
  EXPECT_TRUE(found->find(PageIndex{3 * 512})->replicas[0]->is_read());
}

TEST(LeaseMap, ReadersSeeWholeLeasesWhileReplicasAreReplaced) {
  const auto map = make_map(512);
  map->publish(SlabIndex{0}, make_replicas(2));
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> looked{0};
  std::thread reader([&] {
    while (!ended.load()) {
      const SlabLease* lease = map->find(PageIndex{0});
      size_t readable = 0;
      for (uint32_t i = 0; i < lease->replica_count; ++i)
        readable += lease->replicas[i]->address.value < 1'000'000 ? 1 : 0;
      EXPECT_EQ(readable, 2U);
      looked.fetch_add(1);
    }
  });
  while (looked.load() == 0) std::this_thread::yield();
  for (uint64_t i = 0; i < 2000; ++i) {
    (void)map->find(PageIndex{0})->replicas[i % 2]->end(ReplicaState::kWithdrawn);
    const ReplicaLease* added = map->add(SlabIndex{0}, filling_replica(i));
    ASSERT_NE(added, nullptr);
    EXPECT_TRUE(added->filled());
  }
  ended.store(true);
  reader.join();
}

}  // namespace
}  // namespace farpage::pager
