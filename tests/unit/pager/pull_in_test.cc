#include "pager/fault/pull_in.h"

#include <gtest/gtest.h>

#include <cstring>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using Lines = std::vector<std::string>;

// Answers faults as a worker, from the nodes' memory, without the network.
class Answerer {
 public:
  explicit Answerer(TargetRig& rig)
      : rig_(rig), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) serve();
        }) {}

 private:
  void serve() {
    std::array<uffd::Event, 16> events;
    const size_t count = rig_.space.read_events(events);
    for (const uffd::Event& event : std::span(events).first(count))
      if (const auto* fault = std::get_if<uffd::Fault>(&event)) answer(fault->page);
    if (count == 0) std::this_thread::yield();
  }
  void answer(PageIndex page) {
    const PageWord word = rig_.table.load(page);
    const PageWord held = word.to(PageState::kFetching, PageWord::kFromRemote);
    rig_.table.transition_owned(page, word, held);
    std::array<std::byte, kPageBytes> bytes{};
    const uint64_t content = TargetRig::word_of(page.value);
    std::memcpy(bytes.data(), &content, sizeof content);
    EXPECT_EQ(rig_.space.install(page, bytes, uffd::Protection::kWriteProtected),
              uffd::Outcome::kDone);
    // The reader has gone on; the word follows later.
    std::this_thread::yield();
    rig_.table.transition_owned(page, held, held.to(PageState::kClean));
  }

  TargetRig& rig_;
  std::jthread thread_;
};

TEST(PullIn, NothingIsReadWhereNothingIsAway) {
  TargetRig rig;
  rig.make_dirty(pages_of(0, 3));
  rig.make_clean(pages_of(3, 3));
  EXPECT_TRUE(pull_in(rig.target));
  EXPECT_EQ(rig.log.count("read"), 0U);
}

TEST(PullIn, WhenItReturnsEveryPageIsPresentAndItsStateSaysSo) {
  TargetRig rig;
  rig.space.let_readers_wait();
  rig.make_remote(pages_of(0, 300));
  rig.make_dirty(pages_of(300, 10));
  rig.make_remote(pages_of(1000, 7));
  const Answerer answerer(rig);
  EXPECT_TRUE(pull_in(rig.target));
  EXPECT_EQ(rig.table.away_pages(), 0U);
  for (uint64_t page = 0; page < 300; ++page) {
    ASSERT_EQ(rig.state(page), PageState::kClean);
    ASSERT_EQ(rig.space.word(page), TargetRig::word_of(page));
  }
  for (uint64_t page = 1000; page < 1007; ++page)
    EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
  EXPECT_EQ(rig.log.of("read"), (Lines{"read 0+256", "read 256+44", "read 1000+7"}));
}

TEST(PullIn, WaitsForAPageThatAWorkerHasInstalledAndNotYetSettled) {
  TargetRig rig;
  const PageWord fetching = rig.make_fetching(5);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  std::atomic<bool> read{false};
  rig.space.after(FakeAddressSpace::Call::kRead, [&](uffd::PageRun) { read = true; });
  bool all = false;
  PageState at_return = PageState::kEmpty;
  std::jthread thread([&] {
    all = pull_in(rig.target);
    at_return = rig.state(5);
  });
  ASSERT_TRUE(becomes_true([&] { return read.load(); }));
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // it would return now
  rig.table.transition_owned(PageIndex{5}, fetching, fetching.to(PageState::kClean));
  thread.join();
  EXPECT_TRUE(all);
  EXPECT_EQ(at_return, PageState::kClean);
}

TEST(PullIn, FailsWhereAPageIsLost) {
  TargetRig rig;
  rig.space.let_readers_wait();
  rig.make_remote(pages_of(4));
  rig.make_fetching(5);
  rig.move(5, PageState::kLost);
  ASSERT_TRUE(rig.space.poison(pages_of(5)));
  const Answerer answerer(rig);
  EXPECT_FALSE(pull_in(rig.target));
}

TEST(PullIn, FailsWhereAPageCannotBeRead) {
  TargetRig rig;
  rig.make_remote(pages_of(4));
  EXPECT_FALSE(pull_in(rig.target)) << "nobody answers the fault";
}

TEST(PullIn, FailsWhereAWorkerDoesNotSettleAPageBeforeTheDeadline) {
  TargetRig rig({.fault_deadline = Milliseconds(1)});
  rig.make_fetching(5);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  EXPECT_FALSE(pull_in(rig.target));
}

TEST(PullIn, EndsWithTheTarget) {
  TargetRig rig;
  rig.make_fetching(5);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  rig.space.after(FakeAddressSpace::Call::kRead, [&](uffd::PageRun) { rig.target.closing = true; });
  EXPECT_FALSE(pull_in(rig.target));
  EXPECT_FALSE(pull_in(rig.target)) << "and does not begin";
  EXPECT_EQ(rig.log.count("read"), 1U);
}

}  // namespace
}  // namespace farpage::pager
