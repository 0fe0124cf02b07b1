// Progress: one line on a terminal with the progress of a long run, rewritten twice a second and
// removed at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace farpage::bench {

// The end of the run: after `duration` if it is not 0, otherwise after a number of operations.
struct ProgressGoal {
  uint64_t operations = 0;
  Nanoseconds time{0};
};

// "fault: 12000 of 100000 (12 %), 4000/s, 22 s left". The rate is the mean since the start.
std::string progress_text(std::string_view what, const ProgressGoal& goal, uint64_t done,
                          Nanoseconds elapsed);

struct ProgressOptions {
  bool shown = false;
  int fd = 2;
  Nanoseconds silence = Seconds(1);  // shorter runs show nothing
  Nanoseconds interval = Milliseconds(500);
};

// Threads: one of its own when shown, on any CPU of the process; it calls `done`, which must
// neither block nor delay the measured threads. Construction and destruction: one.
class Progress {
 public:
  Progress(const ProgressOptions& options, std::string what, const ProgressGoal& goal,
           std::function<uint64_t()> done);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show();

  const ProgressOptions options_;
  const std::string what_;
  const ProgressGoal goal_;
  const std::function<uint64_t()> done_;
  Mutex mutex_;
  ConditionVariable stopped_;
  bool stop_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace farpage::bench
