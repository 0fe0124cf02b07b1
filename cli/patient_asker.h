// PatientAsker: the requests of a command that waits for something that a cluster does. After the
// first answer, requests that a coordinator does not answer are repeated: one that restarts, or
// another one that is being elected, is no reason to end.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "base/unanswered.h"

namespace farpage::cli {

// Threads: one.
class PatientAsker {
 public:
  // Repeats nothing after `end`.
  explicit PatientAsker(Instant end) : end_(end) {}

  bool is_over() const { return SteadyClock::read() > end_; }
  // `ask` returns a Result or a Status. What may have been done although its answer was lost must
  // be right to ask for again.
  template <typename Ask>
  auto operator()(const Ask& ask) {
    constexpr Milliseconds kPause{500};
    while (true) {
      auto answer = ask();
      const bool is_silent = is_unanswered(answer);
      answered_ = answered_ || !is_silent;
      if (!is_silent) said_ = false;
      if (!is_silent || !answered_ || is_over()) return answer;
      if (!said_) fmt::print(stderr, "{} (trying again)\n", answer.error().message());
      said_ = true;
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  const Instant end_;
  bool answered_ = false;
  bool said_ = false;
};

}  // namespace farpage::cli
