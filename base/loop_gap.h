// LoopGap: detects that a loop with short turns did not run for a while, because its process was
// stopped or its machine suspended. The deadlines of the loop exclude such a gap: the reply may
// have arrived meanwhile, or the request could not be sent.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace farpage {

// Threads: one at a time.
class LoopGap {
 public:
  // Longer than any turn takes, even on a busy machine.
  static constexpr Nanoseconds kLongestTurn = Seconds(1);

  // Call it once per turn. Returns the time since the previous turn if that is more than
  // kLongestTurn; otherwise 0, also for the first turn.
  Nanoseconds turn(Instant now) {
    const Instant former = last_;
    last_ = now;
    const bool gap = former.count() != 0 && now - former > kLongestTurn;
    return gap ? now - former : Nanoseconds(0);
  }
  // A time from which a deadline counts, without the gap that the last turn() has returned. Not
  // later than that turn: what began after the gap began then.
  Instant without(Nanoseconds gap, Instant since) const { return std::min(since + gap, last_); }
  // The loop is idle from now on: the next turn counts as the first one.
  void rest() { last_ = Instant{0}; }

 private:
  Instant last_{0};
};

}  // namespace farpage
