#include "bench/pace.h"

#include <limits>
#include <thread>

namespace farpage::bench {
namespace {

constexpr uint64_t kNanosecondsPerSecond = 1'000'000'000;
// Longer than the kernel's timer slack plus a wake-up.
constexpr Nanoseconds kSpin = std::chrono::microseconds(150);

uint64_t limit_of(const PaceOptions& options) {
  if (options.duration.count() == 0) return options.touches;
  if (options.rate_per_s == 0) return std::numeric_limits<uint64_t>::max();
  // Touches with a start before the end; the first is one period after the start.
  return (static_cast<uint64_t>(options.duration.count()) * options.rate_per_s + 999) / 1000 - 1;
}

}  // namespace

Status validate_length(Milliseconds duration, uint64_t iterations,
                       std::optional<uint32_t> threads) {
  if (duration > kMaxDuration) return fail(ErrorCode::kInvalid, "--duration: up to 24h");
  if (duration.count() != 0 || iterations >= threads.value_or(1)) return {};
  return fail(ErrorCode::kInvalid,
              threads ? "--iterations: at least one for each thread" : "--iterations: at least 1");
}

Pace::Pace(const PaceOptions& options, Instant start)
    : options_(options), start_(start), limit_(limit_of(options)) {}

Instant Pace::intended(uint64_t number) const {
  const uint64_t rate = options_.rate_per_s;
  return start_ + Seconds(number / rate) +
         Nanoseconds(number % rate * kNanosecondsPerSecond / rate);
}

std::optional<Instant> Pace::next(Instant now) {
  if (given_ == limit_ || (is_timed() && now >= start_ + options_.duration)) return std::nullopt;
  ++given_;
  if (!is_open()) return now;
  const Instant time = intended(given_);
  if (now > time) ++late_;
  return time;
}

uint64_t Pace::missed() const {
  return is_timed() && is_open() ? limit_ - given_ : 0;
}

void wait_until(Instant time) {
  const Nanoseconds left = time - SteadyClock::read();
  if (left > kSpin) std::this_thread::sleep_for(left - kSpin);
  compute_until(time);
}

void compute_until(Instant time) {
  while (SteadyClock::read() < time) {
  }
}

}  // namespace farpage::bench
