#include "pager/links/scrubber.h"

#include <gtest/gtest.h>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using Lines = std::vector<std::string>;

class ScrubberRig : public TargetRig {
 public:
  explicit ScrubberRig(uint32_t replicas = 1) : TargetRig({.nodes = replicas}) {
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
  }
  const LeaseMap& leases() const { return target.leases_of(PageWord()); }
  void store(uffd::PageRun run) {
    target.note_touched(run.first);
    make_remote(run);
    keep_checksums(run);
  }
  // A whole round; what it finds.
  std::vector<WrongPage> round() {
    std::vector<WrongPage> wrong;
    while (const auto piece = scrubber.next())
      (void)scrubber.check(
          *piece, [](const ReplicaLease&) { return true; },
          [&](const WrongPage& page) { wrong.push_back(page); });
    return wrong;
  }

  std::atomic<bool> stopping{false};
  std::unique_ptr<LinkPort> port = make_port(Scrubber::kPiecePages * kPageBytes);
  SlabTransfer transfer{*port, stopping};
  Scrubber scrubber{1U << 20, transfer};
};

TEST(Scrubber, ReadsWhatHasAChecksumOfEachReplica) {
  ScrubberRig rig(2);
  rig.store(pages_of(10, 3));
  rig.store(pages_of(100));
  rig.scrubber.add(rig.leases());
  EXPECT_TRUE(rig.round().empty());
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 10+3", "READ n1 10+3", "READ n0 100", "READ n1 100"}));
  EXPECT_EQ(rig.scrubber.pages_checked(), 8U);
  EXPECT_EQ(rig.scrubber.pages_wrong(), 0U);
}

TEST(Scrubber, NamesTheReplicaOfAWrongPageInEachRound) {
  ScrubberRig rig(2);
  rig.store(pages_of(10, 3));
  rig.node(1).set_word(11, 9);
  rig.scrubber.add(rig.leases());
  const std::vector<WrongPage> expected{{&rig.leases(), PageIndex{11}, &rig.replica(11, 1)}};
  EXPECT_EQ(rig.round(), expected);
  EXPECT_EQ(rig.round(), expected);
}

TEST(Scrubber, APageBetweenTwoThatHasNoChecksumIsNotChecked) {
  ScrubberRig rig;
  rig.store(pages_of(10, 3));
  rig.target.checksums_of(PageWord()).forget(PageIndex{11});
  rig.node().set_word(11, 9);
  rig.scrubber.add(rig.leases());
  EXPECT_TRUE(rig.round().empty());
  EXPECT_EQ(rig.scrubber.pages_checked(), 2U);
}

TEST(Scrubber, APageThatIsWrittenWhileItIsReadIsNotWrong) {
  ScrubberRig rig;
  rig.store(pages_of(10));
  rig.scrubber.add(rig.leases());
  rig.node().answer_all(std::nullopt);
  std::jthread node([&] {
    EXPECT_TRUE(becomes_true([&] { return rig.node().waiting() == 1; }));
    rig.target.checksums_of(PageWord()).set(PageIndex{10}, 12345);
    rig.node().set_word(10, 9);
    rig.node().answer();
  });
  EXPECT_TRUE(rig.round().empty());
}

TEST(Scrubber, ALostReplicaIsNotReadAndARegionThatHasGoneNeither) {
  ScrubberRig rig(2);
  rig.store(pages_of(10));
  rig.scrubber.add(rig.leases());
  (void)rig.replica(10, 0).end(ReplicaState::kLost);
  EXPECT_TRUE(rig.round().empty());
  EXPECT_EQ(rig.log.take(), Lines{"READ n1 10"});
  ASSERT_TRUE(rig.scrubber.next().has_value());
  rig.scrubber.remove(rig.leases());
  EXPECT_FALSE(rig.scrubber.next().has_value());
}

TEST(Scrubber, RestsAsLongAsTheRateAsks) {
  ScrubberRig rig;
  EXPECT_EQ(rig.scrubber.rest_after(Milliseconds(100), 1U << 19), Milliseconds(400));
  EXPECT_EQ(rig.scrubber.rest_after(Seconds(2), 1U << 20), Nanoseconds(0));
}

}  // namespace
}  // namespace farpage::pager
