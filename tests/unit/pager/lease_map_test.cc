#include "pager/links/lease_map.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

constexpr uint64_t kSlab = uint64_t{2} << 20;  // 512 pages

std::unique_ptr<LeaseMap> make_map(uint64_t pages) {
  auto map = LeaseMap::create(pages, kSlab);
  EXPECT_TRUE(map.has_value());
  return std::move(*map);
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
  map->publish(SlabIndex{7}, std::make_unique<SlabLease>());
  EXPECT_EQ(map->wanted(10), (std::vector{SlabIndex{0}}));
  EXPECT_NE(map->find(PageIndex{4000}), nullptr);
}

TEST(LeaseMap, WantedIsLimited) {
  const auto map = make_map(512 * 100);
  for (uint64_t slab = 0; slab < 100; ++slab) map->touch(PageIndex{slab * 512});
  EXPECT_EQ(map->wanted(16).size(), 16U);
}

TEST(LeaseMap, ReplacedLeaseStaysValidForThoseWhoHoldIt) {
  const auto map = make_map(512);
  auto first = std::make_unique<SlabLease>();
  first->replica_count = 1;
  map->publish(SlabIndex{0}, std::move(first));
  const SlabLease* held = map->find(PageIndex{0});
  map->publish(SlabIndex{0}, std::make_unique<SlabLease>());
  EXPECT_EQ(held->replica_count, 1U);
  EXPECT_NE(map->find(PageIndex{0}), held);
}

}  // namespace
}  // namespace farpage::pager
