// LoopGap: tells a loop that turns often that it did not run for a while, because its process was
// stopped or its machine suspended. Time limits of what the loop waits for do not count that while:
// the answer may have come meanwhile, or could not be asked for.
#pragma once

#include "base/clock.h"

namespace farpage {

// Threads: one at a time.
class LoopGap {
 public:
  // No turn takes so long by itself, not even on a busy machine.
  static constexpr Nanoseconds kLongestTurn = Seconds(1);

  // Call it once a turn. What has passed since the former turn, if that is more than kLongestTurn;
  // else 0, as for the first turn.
  Nanoseconds turn(Instant now) {
    const Instant former = last_;
    last_ = now;
    const bool gap = former.count() != 0 && now - former > kLongestTurn;
    return gap ? now - former : Nanoseconds(0);
  }
  // The loop waits for nothing from here on: the next turn is the first one.
  void rest() { last_ = Instant{0}; }

 private:
  Instant last_{0};
};

}  // namespace farpage
