// Slabs in a file of this host where no node has room for them: the whole pager on real pages, with
// a real file.
#include <gtest/gtest.h>

#include <set>

#include "rig.h"

namespace farpage::pager {
namespace {

using rdma::TransportKind;

constexpr uint64_t kSlabPages = kTestSlabBytes >> kPageShift;
constexpr uint64_t kSlabs = 8;

// Eight slabs of pages, of which less than one is local and one is lent.
RigOptions full_cluster(TransportKind transport = TransportKind::kShm) {
  RigOptions options;
  options.transport = transport;
  options.pages = kSlabs * kSlabPages;
  options.local_pages = 256;
  options.slab_limit = 1;
  options.spill_slabs = kSlabs;
  return options;
}

void fill_all(Rig& rig, uint64_t version) {
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, version);
}
uint64_t wrong_pages(Rig& rig, uint64_t version) {
  uint64_t wrong = 0;
  // In another order than they were written.
  for (uint64_t i = 0; i < rig.pages(); ++i)
    wrong += holds(rig, i * 1237 % rig.pages(), version) ? 0 : 1;
  return wrong;
}
bool all_have_returned(Rig& rig) {
  return comes_true([&] { return rig.file().free_places() == rig.file().places(); });
}

TEST(Spill, PagesGoToTheFileAndAreRightAlsoWhenTheyChange) {
  Rig rig(full_cluster());
  fill_all(rig, 1);
  EXPECT_EQ(rig.file().free_places(), 1U) << "one slab is on the node";
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
  fill_all(rig, 2);
  EXPECT_EQ(wrong_pages(rig, 2), 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_EQ(rig.stats().leased_slabs, kSlabs);
  EXPECT_EQ(names_of_transports(rig.stats()), "shm,file");
  rig.stop();
  EXPECT_EQ(rig.file().free_places(), rig.file().places()) << "its end gives them back";
}

TEST(Spill, SlabsReturnToTheNodeWhenItHasRoomAndWhatIsWrittenMeanwhileIsThere) {
  Rig rig(full_cluster());
  fill_all(rig, 1);
  rig.client().set_slab_limit(kSlabs);
  uint64_t version = 1;
  while (rig.file().free_places() != rig.file().places() && version < 1000)
    fill_all(rig, ++version);
  EXPECT_TRUE(all_have_returned(rig));
  EXPECT_EQ(wrong_pages(rig, version), 0U);
  fill_all(rig, version + 1);
  EXPECT_EQ(wrong_pages(rig, version + 1), 0U);
  EXPECT_EQ(rig.stats().replicas_lost, 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

TEST(Spill, NodeThatRefusesWhatItIsFilledWithTakesNothingWithIt) {
  Rig rig(full_cluster(TransportKind::kLoop));
  rig.client().set_slab_limit(0);
  fill_all(rig, 1);
  rig.loop().set_faults({.failed_per_mille = 1000});
  rig.client().set_slab_limit(kSlabs);
  // The lease that was not filled is released, and asked for anew.
  ASSERT_TRUE(comes_true([&] { return rig.client().releases() >= 2; }));
  for (uint64_t page = kSlabPages; page < rig.pages(); page += 7) EXPECT_TRUE(holds(rig, page, 1));
  EXPECT_LE(rig.file().free_places(), 1U);
  rig.loop().set_faults({});
  EXPECT_TRUE(all_have_returned(rig));
}

TEST(Spill, TwoReplicasAreMadeOfTheOneInTheFile) {
  RigOptions options = full_cluster();
  options.nodes = 2;
  options.replicas = 2;
  Rig rig(options);
  fill_all(rig, 1);
  rig.client().set_slab_limit(kSlabs);
  ASSERT_TRUE(all_have_returned(rig));
  rig.node(0).kill();
  EXPECT_EQ(wrong_pages(rig, 1), 0U) << "the other node has each page, too";
}

TEST(Spill, CoordinatorThatIsGoneForAWhileCostsNoFault) {
  RigOptions options = full_cluster();
  options.slab_limit = kSlabs;
  Rig rig(options);
  rig.client().set_down(true);
  fill_all(rig, 1);
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_LT(rig.file().free_places(), rig.file().places());
  rig.client().set_down(false);
  EXPECT_TRUE(all_have_returned(rig));
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
}

// Each request to it takes its whole deadline.
TEST(Spill, CoordinatorThatIsStoppedIsNotAskedForEachSlab) {
  RigOptions options = full_cluster();
  options.slab_limit = kSlabs;
  Rig rig(options);
  rig.client().set_silent(Milliseconds(700));
  fill_all(rig, 1);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_LT(rig.file().free_places(), 3U);
  EXPECT_LE(rig.client().leases_without_answer(), 2);
  rig.client().set_silent(Milliseconds(0));
  EXPECT_TRUE(all_have_returned(rig));
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
}

TEST(Spill, AProgramCanBeginWhereNoNodeHasRoomAtAll) {
  RigOptions options = full_cluster();
  options.slab_limit = 0;
  Rig rig(options);
  fill_all(rig, 1);
  EXPECT_EQ(rig.file().free_places(), 0U);
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
}

TEST(Spill, FullFileEndsInSigbusAndNotInAHang) {
  RigOptions options = full_cluster();
  options.spill_slabs = 2;
  options.fault_deadline = Milliseconds(300);
  Rig rig(options);
  bool failed = false;
  for (uint64_t page = 0; page < rig.pages() && !failed; ++page)
    failed = ends_in_sigbus(rig.page(page), [&] { fill(rig, page, 1); });
  EXPECT_TRUE(failed);
  EXPECT_EQ(rig.file().free_places(), 0U);
}

TEST(Spill, WithoutAFileAFaultWaitsForANodeIfItMay) {
  RigOptions options = full_cluster();
  options.spill_slabs = 0;
  options.on_full = OnFull::kWait;
  options.fault_deadline = Milliseconds(100);
  Rig rig(options);
  std::atomic<uint64_t> filled{0};
  std::thread program([&] {
    for (uint64_t page = 0; page < rig.pages(); ++page) {
      fill(rig, page, 1);
      filled.store(page + 1);
    }
  });
  // It stands where --on-full=sigbus gives up.
  EXPECT_TRUE(comes_true([&] { return filled.load() > kSlabPages; }));
  uint64_t before = 0;
  EXPECT_TRUE(comes_true([&] {
    std::this_thread::sleep_for(Milliseconds(1000));
    return filled.load() == std::exchange(before, filled.load());
  }));
  EXPECT_LT(filled.load(), rig.pages());
  rig.client().set_slab_limit(kSlabs);
  program.join();
  EXPECT_EQ(wrong_pages(rig, 1), 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

}  // namespace
}  // namespace farpage::pager
