#include "pager/evict/evictor.h"

#include <gtest/gtest.h>

#include "target_rig.h"
#include "tests/sleeping_thread.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using rdma::CompletionStatus;

// The evictor's thread runs from the beginning, and serves the target from add() on.
class EvictorRig : public TargetRig {
 public:
  explicit EvictorRig(const TargetRigOptions& options = {.budget_pages = 100})
      : TargetRig(options) {
    for (const auto& each : nodes) each->answer_all(CompletionStatus::kOk);
  }
  ~EvictorRig() {
    leave(*this);
    engine.stopping = true;
    evictor.reset();
  }

  void add() { evictor->add(target); }
  // Above its mark.
  void fill() { make_clean(pages_of(0, 99)); }
  // The evictor removes the target, whatever it is doing.
  void leave(TargetRig& rig) {
    for (const auto& each : nodes) each->answer_all(CompletionStatus::kOk);
    for (size_t i = node().waiting(); i > 0; --i) node().answer();
    rig.target.closing = true;
    rig.space.do_drop();
    evictor->remove(rig.target);
  }

  std::unique_ptr<LinkPort> port = make_port(EvictionBatch::kBufferBytes);
  std::unique_ptr<Evictor> evictor = std::make_unique<Evictor>(engine, *port);
};

// A second target of the same engine.
class NextTarget : public TargetRig {
 public:
  explicit NextTarget(EvictorRig& first)
      : TargetRig({.budget_pages = 100}, &first), first_(first) {}
  ~NextTarget() { first_.leave(*this); }

  void add() { first_.evictor->add(target); }
  void fill() { make_clean(pages_of(0, 99)); }

 private:
  EvictorRig& first_;
};

uint64_t freed_pages(const TargetRig& rig) {
  return rig.evicted().pages_dropped();
}
bool is_evicted(const TargetRig& rig) {
  return becomes_true([&] { return !rig.budget.above_low(); });
}

TEST(Evictor, EvictsFromTheHighMarkDownToTheLowOne) {
  EvictorRig rig({.pages = 8192, .budget_pages = 4000});
  rig.make_clean(pages_of(0, 3900));
  rig.add();
  ASSERT_TRUE(is_evicted(rig));
  // The last batch may go below the mark.
  EXPECT_GE(rig.budget.used() + EvictionBatch::kMaxPages, 3760U);
  EXPECT_EQ(rig.state(0), PageState::kRemote);
  EXPECT_EQ(rig.state(3899), PageState::kClean);
}

TEST(Evictor, WhereAFaultFoundNoRoomTheRoomBecomesWider) {
  EvictorRig rig({.pages = 8192, .budget_pages = 4000, .adaptive_room = true});
  const uint64_t low = rig.budget.low();
  rig.make_clean(pages_of(0, 4000));
  EXPECT_FALSE(rig.budget.try_take());
  rig.add();
  EXPECT_TRUE(becomes_true([&] { return rig.budget.low() < low; }));
}

TEST(Evictor, WhereFlushesAreSparedAFaultWithoutRoomStartsItAndABatchLeaves) {
  EvictorRig rig({.pages = 8192, .budget_pages = 8000, .spares_flushes = true});
  rig.make_clean(pages_of(0, 8000));
  EXPECT_FALSE(rig.budget.try_take());  // and does not wait: it may be busy with another target
  rig.add();
  ASSERT_TRUE(is_evicted(rig));
  EXPECT_EQ(rig.budget.used(), 8000U - EvictionBatch::kMaxPages);
}

TEST(Evictor, ATargetBelowItsMarkKeepsItsPages) {
  EvictorRig rig;
  NextTarget other(rig);
  rig.make_clean(pages_of(0, 97));
  rig.add();
  other.fill();
  other.add();
  ASSERT_TRUE(is_evicted(other));  // so the first one has been looked at
  EXPECT_EQ(rig.budget.used(), 97U);
  EXPECT_EQ(freed_pages(rig), 0U);
}

TEST(Evictor, PressureWakesIt) {
  EvictorRig rig;
  rig.make_clean(pages_of(0, 97));
  rig.add();
  rig.make_clean(pages_of(97, 2));
  rig.target.nudge_evictor();
  EXPECT_TRUE(is_evicted(rig));
}

TEST(Evictor, WhoWaitsForRoomGetsIt) {
  EvictorRig rig;
  rig.make_clean(pages_of(0, 100));
  std::jthread worker([&] {
    while (!rig.budget.try_take()) rig.target.wait_for_room(std::chrono::hours(1));
  });
  ASSERT_TRUE(becomes_true([&] { return rig.budget.has_waiters(); }));
  rig.add();
  worker.join();
  EXPECT_GT(freed_pages(rig), 0U);
}

TEST(Evictor, ColdPagesGoThoughThereIsRoom) {
  EvictorRig rig;
  rig.make_clean(pages_of(0, 50));
  rig.add();
  rig.target.cold.push(pages_of(10, 5));
  rig.budget.interrupt();
  ASSERT_TRUE(becomes_true([&] { return rig.budget.used() == 45; }));
  EXPECT_EQ(rig.log.of("drop"), std::vector<std::string>{"drop 10+5"});
}

TEST(Evictor, WhatCouldNotBeWrittenIsTriedAgainWhenTheNodeIsBack) {
  EvictorRig rig({.budget_pages = 100, .fault_deadline = Milliseconds(4)});
  rig.make_dirty(pages_of(0, 99));
  rig.node().break_channels();
  rig.add();
  ASSERT_TRUE(becomes_true([&] { return rig.evicted().batches.get() >= 3; }));
  EXPECT_EQ(freed_pages(rig), 0U);
  EXPECT_EQ(rig.budget.used(), 99U);
  rig.connect(*rig.port, 0);
  EXPECT_TRUE(is_evicted(rig));
  uint64_t written = 0;
  for (uint64_t page = 0; page < 99; ++page) {
    if (rig.state(page) != PageState::kRemote) continue;
    ++written;
    EXPECT_EQ(rig.node().word(page), TargetRig::word_of(page));
  }
  EXPECT_GT(written, 0U);
}

// ---- pause, remove ----

TEST(Evictor, NoPageOfAPausedTargetIsEvictedUntilTheLastResume) {
  EvictorRig rig;
  rig.fill();
  rig.evictor->pause(rig.target);
  rig.evictor->pause(rig.target);
  rig.add();
  {
    NextTarget other(rig);
    other.fill();
    other.add();
    ASSERT_TRUE(is_evicted(other));
  }
  rig.evictor->resume(rig.target);
  {
    NextTarget other(rig);
    other.fill();
    other.add();
    ASSERT_TRUE(is_evicted(other));
  }
  EXPECT_EQ(rig.budget.used(), 99U);
  rig.evictor->resume(rig.target);
  EXPECT_TRUE(is_evicted(rig));
}

// The thread of `call` has begun, and sleeps until the batch that is under way has ended.
template <typename Ask>
void expect_to_wait_for_the_batch(EvictorRig& rig, Ask&& ask) {
  rig.node().answer_all(std::nullopt);
  rig.make_dirty(pages_of(0, 99));
  rig.add();
  ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() > 0; }));
  SleepingThread sleeper;
  PageState at_return = PageState::kEmpty;
  std::jthread thread([&] {
    sleeper.begin();
    ask();
    at_return = rig.state(0);
  });
  sleeper.await();
  EXPECT_EQ(rig.state(0), PageState::kEvicting);
  rig.node().answer_all(CompletionStatus::kOk);
  while (rig.node().waiting() > 0) rig.node().answer();
  thread.join();
  EXPECT_EQ(at_return, PageState::kRemote);
}

TEST(Evictor, PauseWaitsForTheBatchOfItsTarget) {
  EvictorRig rig;
  expect_to_wait_for_the_batch(rig, [&] { rig.evictor->pause(rig.target); });
  rig.evictor->resume(rig.target);
}

TEST(Evictor, RemoveWaitsForTheBatchOfItsTarget) {
  EvictorRig rig;
  expect_to_wait_for_the_batch(rig, [&] { rig.evictor->remove(rig.target); });
  rig.make_clean(pages_of(200, 99));
  const uint64_t used = rig.budget.used();
  NextTarget other(rig);
  other.fill();
  other.add();
  ASSERT_TRUE(is_evicted(other));
  EXPECT_EQ(rig.budget.used(), used) << "none of its pages is evicted any more";
}

TEST(Evictor, PauseWaitsForADropThatTakesLong) {
  EvictorRig rig;
  rig.space.drop_later();
  rig.fill();
  rig.add();
  ASSERT_TRUE(becomes_true([&] { return rig.state(0) == PageState::kDropping; }));
  PageState at_return = PageState::kEmpty;
  SleepingThread sleeper;
  std::jthread thread([&] {
    sleeper.begin();
    rig.evictor->pause(rig.target);
    at_return = rig.state(0);
  });
  sleeper.await();
  EXPECT_EQ(rig.state(0), PageState::kDropping);
  rig.space.do_drop();
  thread.join();
  EXPECT_EQ(at_return, PageState::kRemote);
  rig.evictor->resume(rig.target);
}

// ---- several targets ----

TEST(Evictor, ATargetThatDropsSlowlyDelaysNoOther) {
  EvictorRig rig;
  NextTarget other(rig);
  rig.space.drop_later();
  rig.fill();
  rig.add();
  ASSERT_TRUE(becomes_true([&] { return rig.state(0) == PageState::kDropping; }));
  other.fill();
  other.add();
  ASSERT_TRUE(is_evicted(other));
  EXPECT_EQ(rig.state(0), PageState::kDropping);
  EXPECT_EQ(rig.budget.used(), 99U);
  rig.space.do_drop();
  EXPECT_TRUE(is_evicted(rig));
  EXPECT_TRUE(becomes_true([&] { return rig.state(0) == PageState::kRemote; }));
}

// The order in which two targets are evicted that were added while the evictor was busy.
std::string order_of_eviction(bool second_has_a_waiter) {
  EvictorRig busy;
  NextTarget first(busy);
  NextTarget second(busy);
  std::mutex mutex;
  std::string order;
  const auto note = [&](char name) {
    return [&, name](uffd::PageRun) {
      const std::lock_guard lock(mutex);
      if (order.empty() || order.back() != name) order += name;
    };
  };
  first.space.before(Call::kDrop, note('1'));
  second.space.before(Call::kDrop, note('2'));
  busy.node().answer_all(std::nullopt);
  busy.make_dirty(pages_of(0, 99));
  busy.add();
  EXPECT_TRUE(becomes_true([&] { return busy.node().waiting() > 0; }));
  first.fill();
  first.add();
  second.make_clean(pages_of(0, 100));
  second.add();
  std::jthread worker;
  if (second_has_a_waiter) {
    worker = std::jthread([&] {
      while (!second.budget.try_take()) second.target.wait_for_room(std::chrono::hours(1));
    });
    EXPECT_TRUE(becomes_true([&] { return second.budget.has_waiters(); }));
  }
  busy.node().answer_all(CompletionStatus::kOk);
  while (busy.node().waiting() > 0) busy.node().answer();
  EXPECT_TRUE(is_evicted(first));
  EXPECT_TRUE(is_evicted(second));
  return order;
}

TEST(Evictor, TargetsTakeTurnsAndTheOneThatAThreadWaitsForGoesFirst) {
  EXPECT_EQ(order_of_eviction(/*second_has_a_waiter=*/false), "12");
  EXPECT_EQ(order_of_eviction(/*second_has_a_waiter=*/true), "21");
}

// ---- help ----

class HelpedRig : public EvictorRig {
 public:
  // Above the high mark, where helpers evict; below the one that wakes the evictor's thread.
  HelpedRig() : EvictorRig({.budget_pages = 1000, .resolve_in_thread = true}) {
    make_dirty(pages_of(0, 980));
    add();
  }
  // A helper does nothing while the evictor's thread looks for work.
  template <typename Condition>
  [[nodiscard]] bool help_until(Condition condition) {
    return becomes_true([&] {
      evictor->help(target);
      return condition();
    });
  }
  void help_often() {
    for (int i = 0; i < 100; ++i) {
      evictor->help(target);
      std::this_thread::yield();
    }
  }
};

TEST(Evictor, AHelperEvictsAFewPagesWithoutWaiting) {
  HelpedRig rig;
  rig.node().answer_all(std::nullopt);
  ASSERT_TRUE(rig.help_until([&] { return rig.node().waiting() > 0; }));
  rig.evictor->help(rig.target);  // the node has not answered
  EXPECT_EQ(rig.log.of("WRITE"), std::vector<std::string>{"WRITE n0 0+16"});
  EXPECT_EQ(rig.state(15), PageState::kEvicting);
  EXPECT_EQ(rig.state(16), PageState::kDirty);
  rig.node().answer();
  EXPECT_TRUE(rig.help_until([&] { return rig.state(15) == PageState::kRemote; }));
}

TEST(Evictor, ABatchThatAHelperBeganIsEndedThoughItsThreadDoesNotComeBack) {
  HelpedRig rig;
  rig.node().answer_all(std::nullopt);
  ASSERT_TRUE(rig.help_until([&] { return rig.node().waiting() > 0; }));
  rig.node().answer();
  EXPECT_TRUE(becomes_true([&] { return freed_pages(rig) == 16; }));
  EXPECT_EQ(rig.state(15), PageState::kRemote);
}

TEST(Evictor, AHelperLeavesATargetAloneThatHasRoomOrIsPausedOrRemoved) {
  HelpedRig rig;
  rig.evictor->pause(rig.target);
  rig.help_often();
  EXPECT_EQ(rig.log.count("protect"), 0U);
  rig.evictor->resume(rig.target);
  rig.target.closing = true;
  rig.help_often();
  EXPECT_EQ(rig.log.count("protect"), 0U);
  rig.target.closing = false;
  for (uint64_t page = 970; page < 980; ++page) rig.move(page, PageState::kEmpty);
  rig.budget.give_back(10);
  rig.help_often();
  EXPECT_EQ(rig.log.count("protect"), 0U);
  rig.make_dirty(pages_of(1000, 10));
  EXPECT_TRUE(rig.help_until([&] { return rig.log.count("protect") > 0; }));
}

TEST(Evictor, AHelperDoesNotWaitForAnotherThreadThatEvicts) {
  EvictorRig rig({.budget_pages = 1000, .resolve_in_thread = true});
  rig.node().answer_all(std::nullopt);
  rig.make_dirty(pages_of(0, 990));
  rig.add();
  // The evictor's thread waits for the node, with its turn held.
  ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() > 0; }));
  rig.evictor->help(rig.target);  // would wait for ever
  EXPECT_EQ(rig.state(0), PageState::kEvicting);
}

}  // namespace
}  // namespace farpage::pager
