#include "pager/links/repairer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using Answer = rdma::CompletionStatus;

constexpr Milliseconds kSoonGivenUp{1500};

// Slab 0 has its replica on node 0, slab 1 on node 1; node 2 is to have one of each.
class RepairerRig : public TargetRig {
 public:
  explicit RepairerRig(Nanoseconds give_up = kSoonGivenUp)
      : TargetRig({.nodes = 3}), give_up_(give_up) {
    for (uint32_t slab = 0; slab < 2; ++slab) {
      std::vector<std::unique_ptr<const ReplicaLease>> replicas;
      replicas.push_back(std::make_unique<ReplicaLease>(lease(slab, static_cast<uint16_t>(slab))));
      leases->publish(SlabIndex{slab}, std::move(replicas));
      make_remote(pages_of(slab * kSlabPages, kSlabPages));
    }
    for (const auto& each : nodes) each->answer_all(Answer::kOk);
  }
  ~RepairerRig() { repairer.stop(); }

  std::shared_ptr<Fill> fill(uint32_t slab) {
    ReplicaLease filling = lease(slab, 2);
    filling.state = ReplicaState::kFilling;
    const ReplicaLease* added = leases->add(SlabIndex{slab}, filling);
    auto made = std::make_shared<Fill>(*leases, SlabIndex{slab}, *added, [] {});
    repairer.add(made);
    return made;
  }
  static bool ends(const Fill& fill, Fill::End end) {
    return becomes_true([&] { return fill.end.load() != Fill::End::kNone; }) &&
           fill.end.load() == end;
  }
  // The lengths of the operations on that node, of `kind`, in pages.
  std::vector<uint32_t> lengths(const std::string& kind) {
    std::vector<uint32_t> lengths;
    for (const std::string& line : log.take()) {
      unsigned first = 0;
      unsigned pages = 1;
      if (line.rfind(kind, 0) != 0) continue;
      (void)std::sscanf(line.c_str() + kind.size(), " %u+%u", &first, &pages);
      lengths.push_back(pages);
    }
    return lengths;
  }

 private:
  static ReplicaLease lease(uint32_t slab, uint16_t node) {
    ReplicaLease replica;
    replica.node = NodeIndex{node};
    replica.address = RemoteAddress{slab * kSlabBytes};
    replica.generation = Generation{1U + node};
    replica.keys[static_cast<size_t>(rdma::TransportKind::kLoop)] = RemoteKey{7};
    return replica;
  }
  Repairer::Options options() const {
    Repairer::Options options{.rate = {uint64_t{1} << 40}, .checksums = false};
    options.give_up = give_up_;
    return options;
  }
  const Nanoseconds give_up_;

 public:
  std::unique_ptr<LeaseMap> leases = std::move(*LeaseMap::create(2048, kSlabBytes));
  std::unique_ptr<LinkPort> port = make_port(Repairer::kBufferBytes);
  Repairer repairer{options(), engine.copy_gate, *engine.nodes, engine.peers, *port};
};

TEST(Repairer, CopiesEachPageOfASlab) {
  RepairerRig rig;
  for (uint64_t page = 0; page < RepairerRig::kSlabPages; ++page) rig.node(2).set_word(page, 1);
  const auto fill = rig.fill(0);
  ASSERT_TRUE(RepairerRig::ends(*fill, Fill::End::kFilled));
  EXPECT_TRUE(fill->replica.is_read());
  for (uint64_t page = 0; page < RepairerRig::kSlabPages; ++page)
    ASSERT_EQ(rig.node(2).word(page), TargetRig::word_of(page)) << page;
}

// As those of a disk with a bad sector: the channel stays usable.
TEST(Repairer, ReadsThatFailAtOnceKeepNobodyElseWaiting) {
  RepairerRig rig;
  rig.node(0).answer_all(Answer::kLocalError);
  const auto never = rig.fill(0);
  const auto good = rig.fill(1);
  ASSERT_TRUE(RepairerRig::ends(*good, Fill::End::kFilled));
  ASSERT_TRUE(RepairerRig::ends(*never, Fill::End::kLost));
  EXPECT_TRUE(rig.leases->find(SlabIndex{0})->replicas[0]->is_read());
  EXPECT_EQ(rig.log.count("WRITE n2 0"), 0U);
}

TEST(Repairer, ReadsThatFailAreMadeShorterUntilTheyPass) {
  RepairerRig rig(Seconds(30));
  rig.node(0).answer_all(Answer::kTimedOut);
  const auto fill = rig.fill(0);
  ASSERT_TRUE(becomes_true([&] { return rig.log.count("READ n0 0+32") > 0; }));
  rig.node(0).answer_all(Answer::kOk);
  ASSERT_TRUE(RepairerRig::ends(*fill, Fill::End::kFilled));
  const std::vector<uint32_t> reads = rig.lengths("READ n0");
  EXPECT_EQ(reads.front(), Repairer::kPiecePages);
  EXPECT_LE(reads.back(), Repairer::kPiecePages / 2)
      << "a length that has failed is not tried again soon";
}

// A WRITE without an answer may take effect when its pages have been written back again.
TEST(Repairer, AReplicaThatMissesAWriteIsLost) {
  RepairerRig rig;
  rig.node(2).answer_all(Answer::kPeerGone);
  const auto fill = rig.fill(0);
  ASSERT_TRUE(RepairerRig::ends(*fill, Fill::End::kLost));
  EXPECT_FALSE(fill->replica.is_written());
}

TEST(Repairer, ADeathAloneMakesNothingShorter) {
  RepairerRig rig;
  rig.node(2).answer_all(Answer::kPeerGone);
  const auto lost = rig.fill(0);
  ASSERT_TRUE(RepairerRig::ends(*lost, Fill::End::kLost));
  rig.node(2).answer_all(Answer::kOk);
  const auto next = rig.fill(1);
  ASSERT_TRUE(RepairerRig::ends(*next, Fill::End::kFilled));
  const std::vector<uint32_t> reads = rig.lengths("READ n1");
  ASSERT_FALSE(reads.empty());
  EXPECT_EQ(std::ranges::min(reads), Repairer::kPiecePages);
}

// Longer than the patience with a replica that is filled.
TEST(Repairer, ASlowSourceIsWaitedFor) {
  RepairerRig rig;
  rig.node(0).answer_all(std::nullopt);
  const auto fill = rig.fill(0);
  ASSERT_TRUE(becomes_true([&] { return rig.node(0).waiting() == Repairer::kPieces; }));
  std::this_thread::sleep_for(Milliseconds(1100));
  EXPECT_TRUE(fill->replica.is_written());
  rig.node(0).answer_all(Answer::kOk);
  for (uint32_t i = 0; i < Repairer::kPieces; ++i) rig.node(0).answer();
  EXPECT_TRUE(RepairerRig::ends(*fill, Fill::End::kFilled));
}

}  // namespace
}  // namespace farpage::pager
