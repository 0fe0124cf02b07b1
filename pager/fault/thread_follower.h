// ThreadFollower: when a fault worker should stay on the CPU of the thread whose faults it answers.
//
// On an idle machine a worker finds the next fault at once, which tells it that the thread runs on
// its own CPU (wake_policy.h). Where more threads are ready to run than there are CPUs, other
// threads run in between, the worker sleeps, and each fault wakes the workers of all CPUs: eight
// programs on two CPUs spent more than half of their time with it. There it looks at the thread's
// CPU now and then. After two equal looks it is the only worker that watches, and when the
// scheduler moves the thread, it moves behind it. A thread that is elsewhere at every second look
// is not worth it: the trust ends, and twice as many looks are needed for the next.
#pragma once

#include <algorithm>
#include <cstdint>

namespace farpage::pager {

// Threads: one.
class ThreadFollower {
 public:
  static constexpr uint32_t kFaultsPerLook = 8;
  static constexpr uint32_t kFirstLooks = 2, kMostLooks = 1024;
  // So many more in a row: kFirstLooks is enough the next time.
  static constexpr uint32_t kLooksToForget = 64;
  // Looks while it is followed: one elsewhere counts kStrike, one here takes one off.
  static constexpr uint32_t kStrike = 4, kMostStrikes = 9;

  enum class Place : uint8_t {
    kHere,       // on the worker's CPU
    kElsewhere,  // on another
    kIdle,       // unknown, or CPUs are idle
  };

  // A fault that the worker has waited for. True: it is time to look.
  bool note_fault(uint32_t thread) {
    if (thread != thread_) {
      thread_ = thread;
      looks_ = kFirstLooks;
      end();
    }
    if (++faults_ < kFaultsPerLook) return false;
    faults_ = 0;
    return true;
  }

  void looked(Place place) {
    switch (place) {
      case Place::kIdle:
        end();
        return;
      case Place::kHere:
        ++here_;
        if (here_ >= looks_) following_ = true;
        if (here_ >= looks_ + kLooksToForget) looks_ = kFirstLooks;
        if (strikes_ > 0) --strikes_;
        return;
      case Place::kElsewhere:
        here_ = 0;
        if (!following_ || (strikes_ += kStrike) <= kMostStrikes) return;
        looks_ = std::min(looks_ * 2, kMostLooks);
        end();
        return;
    }
  }

  // The thread runs on this CPU, or the worker was just told that it should go to it.
  bool following() const { return following_; }

 private:
  void end() {
    following_ = false;
    faults_ = here_ = strikes_ = 0;
  }

  uint32_t thread_ = 0;
  uint32_t faults_ = 0;           // since the last look
  uint32_t here_ = 0;             // looks in a row that found it here
  uint32_t looks_ = kFirstLooks;  // so many are needed
  uint32_t strikes_ = 0;
  bool following_ = false;
};

}  // namespace farpage::pager
