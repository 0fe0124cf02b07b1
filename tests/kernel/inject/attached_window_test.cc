// How the pages of a program leave that was attached, also while its agent stands.
#include "uffd/attached_window.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "inject/agent_code.h"
#include "taken_program.h"
#include "uffd/other_process.h"

namespace farpage::test {
namespace {

using uffd::DropResult;
using uffd::PageRun;

constexpr Seconds kPatience{20};

// A thread of another process that stands, as under a debugger, until the end of this object.
// Threads: the one that made it.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t thread) : thread_(thread) {
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr), 0);
    EXPECT_EQ(::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr), 0);
    EXPECT_EQ(::waitpid(thread_, nullptr, __WALL), thread_);
  }
  ~StoppedThread() { EXPECT_EQ(::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr), 0); }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

 private:
  const pid_t thread_;
};

// A thread that stops twice at each of its system calls, for some time.
class SlowedThread {
 public:
  explicit SlowedThread(pid_t thread) : tracer_([this, thread] { trace(thread); }) {}
  ~SlowedThread() {
    ends_ = true;
    tracer_.join();
  }
  SlowedThread(const SlowedThread&) = delete;
  SlowedThread& operator=(const SlowedThread&) = delete;

 private:
  void trace(pid_t thread) {
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACESYSGOOD), 0);
    EXPECT_EQ(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
    EXPECT_EQ(::waitpid(thread, nullptr, __WALL), thread);
    while (!ends_) {
      EXPECT_EQ(::ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr), 0);
      await_stop(thread);
    }
    EXPECT_EQ(::ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0);
  }
  // It may sleep in its call.
  void await_stop(pid_t thread) const {
    while (::waitpid(thread, nullptr, __WALL | WNOHANG) != thread) {
      if (ends_) {
        EXPECT_EQ(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
        EXPECT_EQ(::waitpid(thread, nullptr, __WALL), thread);
        return;
      }
      std::this_thread::yield();
    }
  }

  std::atomic<bool> ends_{false};
  std::thread tracer_;
};

class AttachedPages : public testing::Test {
 protected:
  static constexpr uint32_t kPages = 64;
  static constexpr uint32_t kAll = 16;  // pages of one drop

  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
    address_ = program_.ask_number("map " + std::to_string(kPages));
    contents_ = memory_of(program_.pid(), address_, kPages * kPageBytes);
    inject::InjectedAgent& agent = program_.inject();
    take_over(agent);
    ASSERT_TRUE(space_->add_extent(address_, address_ + kPages * kPageBytes));
    first_number_ = run(0, 1).first.value;
    server_ = std::thread([this] { serve(); });
  }
  void TearDown() override {
    if (!server_.joinable()) return;
    EXPECT_EQ(bad_words(), 0U);
    EXPECT_TRUE(userfaultfd().unregister_range(address_, kPages * kPageBytes));
    EXPECT_TRUE(space_->prepare_drop(kPatience));  // all that it was asked for is done
    EXPECT_FALSE(space_->end_drop());
    ends_ = true;
    server_.join();
    space_.reset();
    program_.withdraw();
  }

  uffd::Userfaultfd userfaultfd() {
    Result<Fd> copy = program_.agent().userfaultfd.duplicate();
    EXPECT_TRUE(copy.has_value());
    return uffd::Userfaultfd::adopt(std::move(*copy), program_.agent().features);
  }
  uint64_t bad_words() {
    return program_.ask_number("check " + std::to_string(address_) + " " + std::to_string(kPages));
  }
  PageRun run(uint32_t first, uint32_t pages) const {
    return {PageIndex{space_->runs_in(address_, address_ + kPageBytes).at(0).first.value + first},
            pages};
  }
  uint64_t pages_in(uint64_t begin, uint64_t end) const {
    uint64_t pages = 0;
    for (const PageRun& run : space_->runs_in(begin, end)) pages += run.pages;
    return pages;
  }
  // Numbers within the memory of the program.
  std::set<uint64_t> present() {
    std::set<uint64_t> pages;
    const uint64_t first = run(0, 1).first.value;
    EXPECT_TRUE(space_->find_present(run(0, kPages), [&](PageRun found) {
      for (uint32_t p = 0; p < found.pages; ++p) pages.insert(found.first.value - first + p);
    }));
    return pages;
  }
  void copy_out(const PageRun& pages) {
    std::vector<PageIndex> numbers;
    for (uint32_t p = 0; p < pages.pages; ++p) numbers.push_back(PageIndex{pages.first.value + p});
    std::vector<std::byte> bytes(pages.pages * kPageBytes);
    ASSERT_TRUE(space_->copy_out(numbers, bytes));
  }
  // In a section.
  std::vector<DropResult> drop(std::span<const PageRun> runs) {
    std::vector<DropResult> results(runs.size());
    EXPECT_TRUE(space_->drop(runs, results, Nanoseconds(0)));
    return results;
  }

  std::vector<DropResult> drop_in_section(std::span<const PageRun> runs) {
    EXPECT_TRUE(space_->prepare_drop(kPatience));
    std::vector<DropResult> results = drop(runs);
    EXPECT_FALSE(space_->end_drop());
    return results;
  }
  // As another process, which is no touch of the program.
  uint64_t first_word_of(uint64_t page) {
    uint64_t word = 0;
    const iovec local{&word, sizeof word};
    const iovec remote{reinterpret_cast<void*>(address_ + page * kPageBytes), sizeof word};
    EXPECT_EQ(::process_vm_readv(program_.pid(), &local, 1, &remote, 1, 0), 8);
    return word;
  }
  void write_first_word(uint64_t page, uint64_t word) {
    const iovec local{&word, sizeof word};
    const iovec remote{reinterpret_cast<void*>(address_ + page * kPageBytes), sizeof word};
    EXPECT_EQ(::process_vm_writev(program_.pid(), &local, 1, &remote, 1, 0), 8);
  }

  TakenProgram program_;
  std::unique_ptr<uffd::AddressSpace> space_;
  uint64_t address_ = 0;
  uint64_t first_number_ = 0;
  std::string contents_;
  std::atomic<uint64_t> served_{0};

 private:
  void take_over(const inject::InjectedAgent& agent) {
    uffd::HandedOver target;
    target.userfaultfd = std::move(*agent.userfaultfd.duplicate());
    target.ring = std::move(*Mapping::shared(agent.ring.get(), agent.ring_bytes));
    target.pid = agent.pid;
    target.window_address = agent.staging_address;
    target.window_bytes = agent.staging_bytes;
    target.staging_address = agent.staging_address;
    target.features = agent.features;
    target.attached = true;
    auto space = uffd::adopt_window(target, 1024,
                                    std::move(*Mapping::anonymous(uffd::ExtentMap::kKeptBytes)));
    ASSERT_TRUE(space) << space.error().message();
    space_ = std::move(*space);
  }
  // Of a page that is away the program gets its contents.
  void serve() {
    std::array<uffd::Event, 16> events;
    while (!ends_) {
      if (!space_->event_order()->try_begin_reading()) {
        std::this_thread::yield();
        continue;
      }
      const size_t got = space_->read_events(events);
      space_->end_reading();
      for (const uffd::Event& event : std::span(events).first(got))
        if (const auto* fault = std::get_if<uffd::Fault>(&event)) answer(*fault);
      if (got == 0) std::this_thread::yield();
    }
  }
  void answer(const uffd::Fault& fault) {
    const uint64_t page = (space_->address_of(fault.page) - address_) >> kPageShift;
    const auto* from = reinterpret_cast<const std::byte*>(contents_.data()) + page * kPageBytes;
    ++served_;
    while (true) {
      const ChangingPages section(space_->event_order());
      if (space_->install(fault.page, {from, kPageBytes}, uffd::Protection::kWritable) !=
          uffd::Outcome::kRetry)
        return;
    }
  }

  std::atomic<bool> ends_{false};
  std::thread server_;
};

// An agent that has no CPU in time moves less: then all come back, and it is asked once more.
TEST_F(AttachedPages, LeaveAndComeBack) {
  const std::array runs{run(0, 10), run(12, 4)};
  uint64_t kept = 1;
  while (kept != 0) {
    copy_out(run(0, kAll));
    const uint64_t served = served_;
    const std::vector<DropResult> results = drop_in_section(runs);
    space_->free_dropped();
    kept = results[0].kept | results[1].kept;
    const uint64_t away = kPages - present().size();
    EXPECT_EQ(kept == 0, away == 14);
    EXPECT_EQ(bad_words(), 0U);
    EXPECT_EQ(served_, served + away);
  }
}

TEST_F(AttachedPages, ThatWereWrittenSinceTheirCopyGoBack) {
  const uint64_t before = first_word_of(3);
  const std::array runs{run(0, kAll)};
  uint64_t kept = 0;
  for (uint64_t value = 1; kept != 0b1000; ++value) {
    copy_out(runs[0]);
    write_first_word(3, value);
    kept = drop_in_section(runs)[0].kept;
    space_->free_dropped();
    EXPECT_EQ(kept & 0b1000, 0b1000U);
    EXPECT_EQ(present().count(3), 1U);
    EXPECT_EQ(first_word_of(3), value);
    EXPECT_EQ(bad_words(), 1U);
  }
  write_first_word(3, before);
}

TEST_F(AttachedPages, LeaveInPartsUntilTheStagingAreaIsFull) {
  // Each part needs further pages of the area, until what is in it is dropped.
  const std::array runs{run(0, kPages)};
  for (uint64_t used = 0; used < inject::kStagingPages; used += kPages) {
    (void)drop_in_section(runs);
    EXPECT_EQ(bad_words(), 0U);
  }
  EXPECT_EQ(drop_in_section(runs)[0].kept, ~uint64_t{0});
  uint64_t kept = 1;
  while (kept != 0) {  // an agent that has no CPU in time moves less
    space_->free_dropped();
    kept = drop_in_section(runs)[0].kept;
    EXPECT_EQ(bad_words(), 0U);
  }
  space_->free_dropped();
}

// The kernel looks for the mapping first, and does not find it where the event will say that it
// was.
TEST_F(AttachedPages, AreNotGoneWhileTheyAreMovedElsewhere) {
  std::atomic<bool> over{false};
  std::thread program([&] {
    const std::string where = std::to_string(address_) + " " + std::to_string(kPages);
    EXPECT_EQ(program_.ask_number("move_often " + where + " 3000"), 0U);
    over = true;
  });
  uint64_t refused = 0;
  for (uint32_t page = 0; !over; page = (page + 1) % kPages) {
    const ChangingPages section(space_->event_order());
    const PageIndex number{first_number_ + page};
    const uffd::Outcome outcome = space_->zero({number, 1}, uffd::ZeroFrames::kShared).outcome;
    EXPECT_NE(outcome, uffd::Outcome::kUnmapped);
    EXPECT_NE(outcome, uffd::Outcome::kDone);
    refused += outcome == uffd::Outcome::kRetry ? 1 : 0;
  }
  program.join();
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(bad_words(), 0U);
}

// Of what is not registered no event would tell that it goes.
TEST_F(AttachedPages, AreOnlyThoseThatCanBeRegistered) {
  constexpr uint64_t kPart = 16 * kPageBytes;
  const uint64_t begin = program_.ask_number("map 48");
  const uint64_t middle = begin + kPart;
  const uint64_t last = middle + kPart;
  EXPECT_EQ(program_.ask_number("unmap " + std::to_string(middle) + " 16"), 0U);
  {
    const ChangingPages section(space_->event_order());
    ASSERT_TRUE(space_->add_extent(begin, last + kPart));
  }
  EXPECT_EQ(pages_in(begin, middle), 16U);
  EXPECT_EQ(pages_in(middle, last), 0U);
  EXPECT_EQ(pages_in(last, last + kPart), 16U);
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  const auto missing = [this] {
    while (!space_->event_order()->try_begin_reading()) std::this_thread::yield();
    const auto found = space_->extents_without_memory();
    space_->event_order()->end_reading();
    return found.value();
  };
  EXPECT_EQ(missing(), Ranges{});
  ASSERT_TRUE(userfaultfd().unregister_range(last + 4 * kPageBytes, 4 * kPageBytes));
  EXPECT_EQ(missing(), (Ranges{{last + 4 * kPageBytes, last + 8 * kPageBytes}}));
  EXPECT_EQ(userfaultfd().find_registered(begin, kPart), uffd::Outcome::kDone);
  EXPECT_EQ(userfaultfd().find_registered(begin, 3 * kPart), uffd::Outcome::kUnmapped);
  ASSERT_TRUE(userfaultfd().unregister_range(begin, kPart));
  ASSERT_TRUE(userfaultfd().unregister_range(last, kPart));
  EXPECT_EQ(userfaultfd().find_registered(begin, kPart), uffd::Outcome::kUnmapped);
}

TEST_F(AttachedPages, AreNotThoseOfAnotherUserfaultfd) {
  constexpr uint64_t kPart = 16 * kPageBytes;
  const uint64_t begin = program_.ask_number("map 48");
  ASSERT_EQ(program_.ask_number("watch " + std::to_string(begin + kPart) + " 16"), 0U);
  {
    const ChangingPages section(space_->event_order());
    ASSERT_TRUE(space_->add_extent(begin, begin + 3 * kPart));
  }
  EXPECT_EQ(pages_in(begin, begin + kPart), 16U);
  EXPECT_EQ(pages_in(begin + kPart, begin + 2 * kPart), 0U);
  EXPECT_EQ(pages_in(begin + 2 * kPart, begin + 3 * kPart), 16U);
  ASSERT_TRUE(userfaultfd().unregister_range(begin, kPart));
  ASSERT_TRUE(userfaultfd().unregister_range(begin + 2 * kPart, kPart));
}

TEST_F(AttachedPages, StayForEverWhenTheAgentStandsBeforeItMovesThem) {
  copy_out(run(0, kAll));
  ASSERT_TRUE(space_->prepare_drop(kPatience));
  {
    const StoppedThread agent(program_.agent().thread);
    const std::array runs{run(0, 10), run(12, 4)};
    const std::vector<DropResult> results = drop(runs);
    EXPECT_EQ(results[0].kept, 0x3ffU);
    EXPECT_EQ(results[1].kept, 0xfU);
    EXPECT_FALSE(space_->end_drop());
    space_->free_dropped();
    EXPECT_EQ(bad_words(), 0U);  // messages are read meanwhile
    EXPECT_FALSE(space_->prepare_drop(Milliseconds(1)));
    EXPECT_FALSE(space_->can_drop());
    const Instant since = SteadyClock::read();
    while (!space_->cannot_drop_for_long()) ASSERT_LT(SteadyClock::read() - since, kPatience);
  }
  // It goes on, and does what it was asked for then.
  ASSERT_TRUE(space_->prepare_drop(kPatience));
  EXPECT_FALSE(space_->end_drop());
  EXPECT_TRUE(space_->can_drop());
  EXPECT_FALSE(space_->cannot_drop_for_long());
  EXPECT_EQ(present().size(), kPages);
  EXPECT_EQ(bad_words(), 0U);
  EXPECT_EQ(served_, 0U);
}

TEST_F(AttachedPages, AreHereOrAwayForEverWhereverTheAgentStands) {
  uint64_t away = 0;
  for (int round = 0; round < 40; ++round) {
    std::set<uint64_t> left;
    {
      const SlowedThread agent(program_.agent().thread);
      copy_out(run(0, kAll));
      ASSERT_TRUE(space_->prepare_drop(kPatience));
      const std::array runs{run(0, 1), run(2, 3), run(6, 1), run(8, 8)};
      const std::vector<DropResult> results = drop(runs);
      left = present();
      for (size_t r = 0; r < runs.size(); ++r) {
        for (uint32_t p = 0; p < runs[r].pages; ++p) {
          const uint64_t page = runs[r].first.value - run(0, 1).first.value + p;
          EXPECT_EQ(left.count(page) == 1, results[r].keeps(p)) << "page " << page;
        }
      }
      EXPECT_FALSE(space_->end_drop());
    }
    away += kPages - left.size();
    ASSERT_TRUE(space_->prepare_drop(kPatience));  // all that it was asked for is done
    EXPECT_FALSE(space_->end_drop());
    space_->free_dropped();
    EXPECT_EQ(present(), left);
    EXPECT_EQ(bad_words(), 0U);
    EXPECT_EQ(served_, away);
  }
}

}  // namespace
}  // namespace farpage::test
