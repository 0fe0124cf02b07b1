// The events of programs whose threads change their mappings at the same time. The kernel queues
// them after the change, without a lock, so those of two threads may come in the other order.
#include "uffd/attached_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "uffd/userfaultfd.h"

namespace farpage::uffd {
namespace {

constexpr uint64_t kStaging = 0x7f0000000000;
constexpr uint64_t kStagingPages = 16;
constexpr uint64_t kArea = 0x100000000;
constexpr uint64_t kSlotPages = 16;
constexpr uint64_t kSlotBytes = kSlotPages * kPageBytes;

uint64_t slot_address(size_t slot) {
  return kArea + slot * kSlotBytes;
}

uffd_msg unmap_message(uint64_t begin, uint64_t end) {
  uffd_msg message{};
  message.event = UFFD_EVENT_UNMAP;
  message.arg.remove.start = begin;
  message.arg.remove.end = end;
  return message;
}

uffd_msg remap_message(uint64_t from, uint64_t to, uint64_t bytes) {
  uffd_msg message{};
  message.event = UFFD_EVENT_REMAP;
  message.arg.remap.from = from;
  message.arg.remap.to = to;
  message.arg.remap.len = bytes;
  return message;
}

Userfaultfd no_userfaultfd() {
  return Userfaultfd::adopt(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 0);
}

// Reads what the test has queued. No process is behind it.
class ToldWindow : public AttachedWindow {
 public:
  explicit ToldWindow(std::shared_ptr<ExtentMap> extents)
      : AttachedWindow(no_userfaultfd(), std::move(extents)) {}

  bool event_pending() override { return is_any_pending || !queue.empty(); }

  std::deque<uffd_msg> queue;
  bool is_any_pending = true;
  bool stands = true;  // a thread whose mremap has been told, and the end of its source has not
  using AttachedWindow::has_parked;

 protected:
  bool comes_to_stand_in_change_of(const Range& /*range*/, Instant /*until*/) const override {
    return stands;
  }
  size_t read_messages(std::span<uffd_msg> messages) override {
    size_t got = 0;
    for (; got < messages.size() && !queue.empty(); ++got) {
      messages[got] = queue.front();
      queue.pop_front();
    }
    return got;
  }
};

struct Told {
  std::vector<PageRun> gone, relocated, lost;
};

class AttachedWindowTest : public testing::Test {
 protected:
  AttachedWindowTest()
      : extents_(*ExtentMap::create(kStaging, kStagingPages, 4096)), window_(extents_) {}

  // Returns the number of its first page.
  uint64_t add(size_t slot) {
    EXPECT_TRUE(extents_->add(slot_address(slot), slot_address(slot) + kSlotBytes));
    return extents_->find(slot_address(slot))->value;
  }
  std::optional<uint64_t> at(size_t slot, uint64_t page = 0) const {
    const auto found = extents_->find(slot_address(slot) + page * kPageBytes);
    if (!found) return std::nullopt;
    return found->value;
  }
  void queue_remap(size_t from, size_t to, uint64_t pages = kSlotPages) {
    window_.queue.push_back(
        remap_message(slot_address(from), slot_address(to), pages * kPageBytes));
  }
  void queue_unmap(size_t slot, uint64_t pages = kSlotPages) {
    window_.queue.push_back(
        unmap_message(slot_address(slot), slot_address(slot) + pages * kPageBytes));
  }
  Told read(bool more_pending = true) {
    window_.is_any_pending = more_pending;
    Told told;
    std::array<Event, 16> events;
    do {
      EXPECT_TRUE(window_.event_order()->try_begin_reading());
      const size_t stored = window_.read_events(events);
      for (const Event& event : std::span(events).first(stored)) {
        const auto append = [](std::vector<PageRun>& to, const std::vector<PageRun>& runs) {
          to.insert(to.end(), runs.begin(), runs.end());
        };
        if (const auto* unmapped = std::get_if<Unmapped>(&event)) append(told.gone, unmapped->runs);
        if (const auto* moved = std::get_if<Moved>(&event)) append(told.lost, moved->runs);
        if (const auto* relocated = std::get_if<Relocated>(&event))
          append(told.relocated, relocated->runs);
      }
      window_.end_reading();
    } while (!window_.queue.empty());
    return told;
  }

  std::shared_ptr<ExtentMap> extents_;
  ToldWindow window_;
};

TEST_F(AttachedWindowTest, FollowsAnMremapAndForgetsItsSource) {
  const uint64_t first = add(0);
  queue_remap(0, 1);
  queue_unmap(0);
  const Told told = read(false);
  EXPECT_EQ(at(1), first);
  EXPECT_FALSE(at(0));
  EXPECT_EQ(told.relocated.size(), 1U);
  EXPECT_TRUE(told.gone.empty());
  EXPECT_FALSE(window_.is_behind());
}

// One thread moves 1 to 2; the other moves 0 to 1, which is free now, and tells first.
TEST_F(AttachedWindowTest, AnMremapToldLateTakesThePagesThatWereThereBefore) {
  const uint64_t late = add(1);
  const uint64_t early = add(0);
  queue_remap(0, 1);
  EXPECT_TRUE(read().gone.empty());
  EXPECT_EQ(at(1), early);
  EXPECT_TRUE(window_.is_behind());  // a successor would not know what waits
  queue_unmap(0);
  queue_remap(1, 2);
  queue_unmap(1);
  const Told told = read(false);
  EXPECT_EQ(at(1), early);
  EXPECT_EQ(at(2), late);
  EXPECT_TRUE(told.gone.empty());
  EXPECT_TRUE(told.lost.empty());
  EXPECT_FALSE(window_.is_behind());
}

TEST_F(AttachedWindowTest, AnUnmapToldLateIsOfThePagesThatWereThereBefore) {
  const uint64_t late = add(1);
  const uint64_t early = add(0);
  queue_remap(0, 1);
  (void)read();
  queue_unmap(0);
  queue_unmap(1);
  const Told told = read(false);
  EXPECT_EQ(at(1), early);
  ASSERT_EQ(told.gone.size(), 1U);
  EXPECT_EQ(told.gone[0].first.value, late);
  EXPECT_EQ(told.gone[0].pages, kSlotPages);
}

// The second one has taken the first half of the place only.
TEST_F(AttachedWindowTest, AnMremapToldLateTakesWhatIsParkedAndWhatIsStillInPlace) {
  const uint64_t late = add(1);
  const uint64_t early = add(0);
  queue_remap(0, 1, kSlotPages / 2);
  (void)read();
  queue_remap(1, 2);
  queue_unmap(1);
  const Told told = read(false);
  EXPECT_EQ(at(2, 0), late);
  EXPECT_EQ(at(2, kSlotPages - 1), late + kSlotPages - 1);
  EXPECT_EQ(at(1, 0), early);
  EXPECT_FALSE(at(1, kSlotPages - 1));
  EXPECT_TRUE(told.gone.empty());
}

// An extent of memory that is gone, of which nobody has told.
TEST_F(AttachedWindowTest, WhatIsParkedIsGivenUpWhenNoEventIsOnItsWay) {
  const uint64_t stray = add(1);
  const uint64_t moved = add(0);
  queue_remap(0, 1);
  queue_unmap(0);
  EXPECT_TRUE(read().gone.empty());
  EXPECT_TRUE(window_.is_behind());
  const Told told = read(false);
  ASSERT_EQ(told.gone.size(), 1U);
  EXPECT_EQ(told.gone[0].first.value, stray);
  EXPECT_EQ(at(1), moved);
  EXPECT_FALSE(window_.is_behind());
}

// One thread moves 2 to 3; the other moves 0 and 1 to 1 and 2, of which 1 has been free, and moves
// on at once.
TEST_F(AttachedWindowTest, OnlyWhatHasPagesIsParked) {
  const uint64_t late = add(3);
  const uint64_t early = add(0);
  (void)add(1);
  queue_remap(0, 2, 2 * kSlotPages);
  (void)read();
  queue_unmap(0, 2 * kSlotPages);
  queue_remap(3, 4);
  queue_unmap(3);
  (void)read();
  queue_remap(2, 6, 2 * kSlotPages);
  queue_unmap(2, 2 * kSlotPages);
  const Told told = read(false);
  EXPECT_EQ(at(4), late);
  EXPECT_EQ(at(6), early);
  EXPECT_FALSE(at(2));
  EXPECT_FALSE(at(3));
  EXPECT_TRUE(told.gone.empty());
}

// One thread unmaps 1 to 3, of which 1 was never far; the other moves 0 to 1, and stands.
TEST_F(AttachedWindowTest, AnOlderUnmapTakesNothingThatHasArrivedSince) {
  const uint64_t early = add(0);
  const uint64_t late = add(2);
  queue_remap(0, 1);
  (void)read();
  queue_unmap(1, 2 * kSlotPages);
  queue_unmap(0);
  const Told told = read(false);
  EXPECT_EQ(at(1), early);
  ASSERT_EQ(told.gone.size(), 1U);
  EXPECT_EQ(told.gone[0].first.value, late);
}

TEST_F(AttachedWindowTest, AnOlderMremapTakesNothingAlongThatHasArrivedSince) {
  const uint64_t early = add(0);
  const uint64_t late = add(2);
  queue_remap(0, 1);
  (void)read();
  queue_remap(1, 4, 2 * kSlotPages);
  queue_unmap(1, 2 * kSlotPages);
  queue_unmap(0);
  const Told told = read(false);
  EXPECT_EQ(at(1), early);
  EXPECT_FALSE(at(4));
  EXPECT_EQ(at(5), late);
  EXPECT_TRUE(told.gone.empty());
}

// One thread moves 1 and 2 to 5 and 6, and stands; others move 3 to 2 and 0 to 1, and unmap 1.
TEST_F(AttachedWindowTest, TheEndOfASourceIsKnownByBothItsEnds) {
  (void)add(1);
  (void)add(2);
  const uint64_t stays = add(3);
  const uint64_t goes = add(0);
  queue_remap(1, 5, 2 * kSlotPages);
  queue_remap(3, 2);
  queue_unmap(3);
  queue_remap(0, 1);
  queue_unmap(0);
  (void)read();
  queue_unmap(1);
  const Told told = read();
  ASSERT_EQ(told.gone.size(), 1U);
  EXPECT_EQ(told.gone[0].first.value, goes);
  queue_unmap(1, 2 * kSlotPages);
  EXPECT_TRUE(read(false).gone.empty());
  EXPECT_EQ(at(2), stays);
}

// With MREMAP_DONTUNMAP: no thread stands.
TEST_F(AttachedWindowTest, WhatHasArrivedMovesOnWhereNoEndOfItsSourceIsTold) {
  const uint64_t moved = add(0);
  window_.stands = false;
  queue_remap(0, 1);
  (void)read();
  queue_remap(1, 2);
  queue_unmap(1);
  (void)read();
  EXPECT_EQ(at(2), moved);
  queue_unmap(2);
  const Told told = read(false);
  EXPECT_EQ(told.gone.size(), 1U);
  EXPECT_FALSE(at(2));
}

// Three threads with two areas each, of one or two slots, move, unmap and are cut off between the
// change and its event, at random. The kernel's rules: free addresses only; an event waits in a
// queue until it is read, and its thread until then. Nothing younger is read while the event of
// parked pages is not queued.
TEST_F(AttachedWindowTest, OfThreeThreadsFollowsAllInWhateverOrderTheyTell) {
  constexpr size_t kSlots = 24;
  constexpr size_t kThreads = 3;
  struct Area {
    size_t slot = 0;
    size_t slots = 1;
    uint64_t begin() const { return slot_address(slot); }
    uint64_t end() const { return slot_address(slot + slots); }
  };
  std::mt19937_64 random(21);
  std::map<size_t, uint64_t> truth;  // slot -> its first page
  std::array<std::vector<Area>, kThreads> areas;
  const auto free_place = [&](size_t slots) {
    std::vector<size_t> free;
    for (size_t slot = 0; slot + slots <= kSlots; ++slot)
      if (!truth.contains(slot) && !truth.contains(slot + slots - 1)) free.push_back(slot);
    return free[random() % free.size()];
  };
  uint64_t inversions = 0;
  for (int round = 0; round < 2000; ++round) {
    for (size_t thread = 0; thread < kThreads; ++thread)
      while (areas[thread].size() < 2) {
        const size_t slots = 1 + random() % 2;
        const Area area{free_place(slots), slots};
        for (size_t slot = area.slot; slot < area.slot + slots; ++slot) truth[slot] = add(slot);
        areas[thread].push_back(area);
      }
    std::array<std::deque<uffd_msg>, kThreads>
        untold;  // its first one is in the queue where queued[i]
    std::array<bool, kThreads> queued{};
    std::deque<size_t> order;  // of the threads in the queue
    int steps = 40;
    const auto is_busy = [&] {
      return std::ranges::any_of(untold, [](const auto& events) { return !events.empty(); });
    };
    while (steps > 0 || is_busy()) {
      --steps;
      const size_t thread = random() % kThreads;
      if (untold[thread].empty()) {
        if (steps <= 0 || areas[thread].empty()) continue;
        const size_t which = random() % areas[thread].size();
        const Area area = areas[thread][which];
        std::vector<uint64_t> pages;
        for (size_t slot = area.slot; slot < area.slot + area.slots; ++slot)
          pages.push_back(truth[slot]);
        const bool gives_up = random() % 8 == 0;
        const Area to{gives_up ? 0 : free_place(area.slots), area.slots};
        for (size_t slot = area.slot; slot < area.slot + area.slots; ++slot) truth.erase(slot);
        untold[thread].push_back(unmap_message(area.begin(), area.end()));
        if (gives_up) {
          areas[thread].erase(areas[thread].begin() + static_cast<ptrdiff_t>(which));
          continue;
        }
        untold[thread].push_front(
            remap_message(area.begin(), to.begin(), area.end() - area.begin()));
        for (size_t i = 0; i < to.slots; ++i) truth[to.slot + i] = pages[i];
        areas[thread][which] = to;
      } else if (!queued[thread] && random() % 4 == 0) {
        queued[thread] = true;
        order.push_back(thread);
      }
      const bool all_queued = [&] {
        for (size_t i = 0; i < kThreads; ++i)
          if (!untold[i].empty() && !queued[i]) return false;
        return true;
      }();
      if (order.empty() || random() % 2 == 0 || (window_.has_parked() && !all_queued)) continue;
      const size_t told = order.front();
      order.pop_front();
      queued[told] = false;
      window_.queue.push_back(untold[told].front());
      untold[told].pop_front();
      (void)read(is_busy());
      inversions += window_.has_parked() ? 1 : 0;
    }
    for (size_t slot = 0; slot < kSlots; ++slot) {
      const auto found = truth.find(slot);
      if (found == truth.end()) {
        EXPECT_FALSE(at(slot)) << "round " << round << " slot " << slot;
      } else {
        EXPECT_EQ(at(slot), found->second) << "round " << round << " slot " << slot;
      }
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
    EXPECT_FALSE(window_.is_behind());
  }
  EXPECT_GT(inversions, 400U);
}

}  // namespace
}  // namespace farpage::uffd
