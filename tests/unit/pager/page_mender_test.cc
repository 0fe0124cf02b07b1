#include "pager/links/page_mender.h"

#include <gtest/gtest.h>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using Lines = std::vector<std::string>;

constexpr uint64_t kWrongWord = 9;  // not what any page has

// Page 5 is stored on all nodes; that of node 0 is wrong. Nodes answer at once.
class MenderRig : public TargetRig {
 public:
  explicit MenderRig(uint32_t replicas = 2) : TargetRig({.nodes = replicas}) {
    make_remote(pages_of(5));
    keep_checksums(pages_of(5));
    node(0).set_word(5, kWrongWord);
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
  }
  PageMender::End mend() {
    return mender.mend({&target.leases_of(PageWord()), PageIndex{5}, &replica(5, 0)});
  }

  std::atomic<bool> stopping{false};
  std::unique_ptr<LinkPort> port = make_port(2 * kPageBytes);
  SlabTransfer transfer{*port, stopping};
  PageMender mender{engine.copy_gate, *engine.nodes, transfer};
};

TEST(PageMender, WritesTheRightBytesAgainAndReadsThemBack) {
  MenderRig rig;
  EXPECT_EQ(rig.mend(), PageMender::End::kMended);
  EXPECT_EQ(rig.node(0).word(5), TargetRig::word_of(5));
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 5", "READ n1 5", "WRITE n0 5", "READ n0 5"}));
  EXPECT_EQ(rig.mender.mended(), 1U);
  EXPECT_TRUE(rig.replica(5, 0).is_read());
  EXPECT_FALSE(rig.engine.copy_gate.is_closed(rig.target.leases_of(PageWord()), PageIndex{5}));
}

TEST(PageMender, WhatIsRightByNowIsNotWritten) {
  MenderRig rig;
  rig.node(0).set_word(5, TargetRig::word_of(5));
  EXPECT_EQ(rig.mend(), PageMender::End::kRight);
  EXPECT_EQ(rig.log.count("WRITE"), 0U);
}

TEST(PageMender, ASlotThatIsBeingWrittenIsLeftAlone) {
  MenderRig rig;
  rig.target.checksums_of(PageWord()).forget(PageIndex{5});
  EXPECT_EQ(rig.mend(), PageMender::End::kRight);
  EXPECT_EQ(rig.log.take(), Lines{});
}

TEST(PageMender, WaitsForTheBatchThatIsBeingWritten) {
  MenderRig rig;
  rig.engine.copy_gate.begin_writing();
  std::atomic<bool> mended{false};
  std::jthread thread([&] {
    EXPECT_EQ(rig.mend(), PageMender::End::kMended);
    mended = true;
  });
  ASSERT_TRUE(becomes_true([&] {
    return rig.engine.copy_gate.is_closed(rig.target.leases_of(PageWord()), PageIndex{5});
  }));
  EXPECT_FALSE(mended.load());
  EXPECT_EQ(rig.log.take(), Lines{});
  rig.engine.copy_gate.end_writing();
  thread.join();
}

TEST(PageMender, WhereNoReplicaIsRightNothingIsWritten) {
  MenderRig rig;
  rig.node(1).set_word(5, kWrongWord + 1);
  EXPECT_EQ(rig.mend(), PageMender::End::kNoOther);
  EXPECT_EQ(rig.node(0).word(5), kWrongWord);
  EXPECT_TRUE(rig.replica(5, 0).is_read());
}

TEST(PageMender, TheThirdReplicaHasItWhenTheSecondIsWrongToo) {
  MenderRig rig(3);
  rig.node(1).set_word(5, kWrongWord + 1);
  EXPECT_EQ(rig.mend(), PageMender::End::kMended);
  EXPECT_EQ(rig.node(0).word(5), TargetRig::word_of(5));
}

TEST(PageMender, AReplicaThatDoesNotTakeTheBytesIsLost) {
  MenderRig rig;
  rig.node(0).answer_all(std::nullopt);
  std::jthread node([&] {
    for (const auto status : {rdma::CompletionStatus::kOk, rdma::CompletionStatus::kTimedOut}) {
      EXPECT_TRUE(becomes_true([&] { return rig.node(0).waiting() == 1; }));
      rig.node(0).answer(status);
    }
  });
  EXPECT_EQ(rig.mend(), PageMender::End::kLost);
  EXPECT_FALSE(rig.replica(5, 0).is_written());
  EXPECT_TRUE(rig.replica(5, 1).is_read());
}

TEST(PageMender, AReplicaThatDoesNotKeepTheBytesIsLost) {
  MenderRig rig;
  rig.node(0).answer_all(std::nullopt);
  std::jthread node([&] {
    for (int operation = 0; operation < 3; ++operation) {
      EXPECT_TRUE(becomes_true([&] { return rig.node(0).waiting() == 1; }));
      rig.node(0).set_word(5, kWrongWord);  // as of memory with a bit that is stuck
      rig.node(0).answer();
    }
  });
  EXPECT_EQ(rig.mend(), PageMender::End::kLost);
  EXPECT_FALSE(rig.replica(5, 0).is_written());
}

TEST(PageMender, ANodeThatCannotBeReadLeavesThePageToTheNextRead) {
  MenderRig rig;
  rig.node(1).answer_all(rdma::CompletionStatus::kTimedOut);
  EXPECT_EQ(rig.mend(), PageMender::End::kUnknown);
  EXPECT_EQ(rig.node(0).word(5), kWrongWord);
}

}  // namespace
}  // namespace farpage::pager
