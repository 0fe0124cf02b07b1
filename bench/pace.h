// Pace: the start time of each touch of one thread, and the end of the thread's run.
//
// A closed loop starts a touch when the previous one ends. An open loop has an intended start for
// each touch. Latency is measured from the intended start, so a stall is charged to all touches
// that it delays ("coordinated omission": Gil Tene, "How NOT to Measure Latency").
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace farpage::bench {

inline constexpr uint64_t kMaxRatePerSecond = 10'000'000;
inline constexpr Milliseconds kMaxDuration = Seconds(24 * 3600);
inline constexpr std::chrono::microseconds kMaxCompute = Seconds(1);

// Checks --duration and --iterations. kInvalid: more than kMaxDuration, or no duration and fewer
// iterations than one, or than one for each of `threads`.
Status validate_length(Milliseconds duration, uint64_t iterations,
                       std::optional<uint32_t> threads = std::nullopt);

struct PaceOptions {
  uint64_t touches = 0;      // without a duration
  Milliseconds duration{0};  // 0: `touches` ends the run
  uint64_t rate_per_s = 0;   // 0: a closed loop
};

// Threads: one.
class Pace {
 public:
  Pace(const PaceOptions& options, Instant start);

  // The intended start of the next touch, in the past or in the future (wait_until()); in a closed
  // loop, `now`. nullopt: the run is over.
  std::optional<Instant> next(Instant now);
  // Touches of an open loop that next() returned after their intended start.
  uint64_t late() const { return late_; }
  // After the last touch: touches of an open loop with an intended start within the duration that
  // the thread never started.
  uint64_t missed() const;

 private:
  bool is_timed() const { return options_.duration.count() > 0; }
  bool is_open() const { return options_.rate_per_s > 0; }
  Instant intended(uint64_t number) const;

  const PaceOptions options_;
  const Instant start_;
  const uint64_t limit_;
  uint64_t given_ = 0;
  uint64_t late_ = 0;
};

// Sleeps, then spins for the rest, because a sleep overshoots.
void wait_until(Instant time);
// Keeps the CPU busy until then, as a program that computes.
void compute_until(Instant time);

}  // namespace farpage::bench
