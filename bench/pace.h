// Pace: when each touch of one thread is to start, and when the thread is done.
//
// A closed loop starts a touch when the one before is over. An open loop has a time for each: a
// touch that a stall delays still counts from its own time, so that the stall is charged to all
// that it delays ("coordinated omission": Gil Tene, "How NOT to Measure Latency").
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace farpage::bench {

inline constexpr uint64_t kMaxRatePerSecond = 10'000'000;
inline constexpr Milliseconds kMaxDuration = Seconds(24 * 3600);

// How long a run is, as --duration and --iterations say. kInvalid: more than kMaxDuration, or
// without a duration fewer iterations than one, or than one for each of `threads`.
Status validate_length(Milliseconds duration, uint64_t iterations,
                       std::optional<uint32_t> threads = std::nullopt);

struct PaceOptions {
  uint64_t touches = 0;      // without a duration
  Milliseconds duration{0};  // 0: `touches` decide
  uint64_t rate_per_s = 0;   // 0: a closed loop
};

// Threads: one.
class Pace {
 public:
  Pace(const PaceOptions& options, Instant start);

  // The intended start of the next touch, which may be past or still to come (wait_until());
  // nullopt: that was all. A closed loop's is `now`.
  std::optional<Instant> next(Instant now);
  // Touches of an open loop that next() gave when their time was past already.
  uint64_t late() const { return late_; }
  // After the last one: touches of an open loop whose time lay within the duration, and which the
  // thread never came to.
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

// Sleeps, and spins for the last part: a sleep alone would end late.
void wait_until(Instant time);

}  // namespace farpage::bench
