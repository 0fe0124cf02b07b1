#include "bench/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bench/touch.h"

namespace farpage::bench {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

double seconds_of(Nanoseconds time) {
  return static_cast<double>(time.count()) / 1e9;
}

double seconds_left(const ProgressGoal& goal, uint64_t done, double rate, Nanoseconds elapsed) {
  if (goal.time.count() > 0) return std::max(0.0, seconds_of(goal.time - elapsed));
  return static_cast<double>(goal.operations - std::min(done, goal.operations)) / rate;
}

void write_text(int fd, std::string_view text) {
  // If the terminal accepts no more output, the line is lost.
  if (::write(fd, text.data(), text.size()) < 0) return;
}

}  // namespace

std::string progress_text(std::string_view what, const ProgressGoal& goal, uint64_t done,
                          Nanoseconds elapsed) {
  std::string text = fmt::format("{}: {}", what, done);
  if (goal.time.count() == 0 && goal.operations > 0)
    text += fmt::format(" of {} ({} %)", goal.operations, done * 100 / goal.operations);
  const double rate = elapsed.count() > 0 ? static_cast<double>(done) / seconds_of(elapsed) : 0;
  text += fmt::format(", {:.0f}/s", rate);
  if (rate > 0 || goal.time.count() > 0)
    text += fmt::format(", {:.0f} s left", seconds_left(goal, done, rate, elapsed));
  return text;
}

Progress::Progress(const ProgressOptions& options, std::string what, const ProgressGoal& goal,
                   std::function<uint64_t()> done)
    : options_(options), what_(std::move(what)), goal_(goal), done_(std::move(done)) {
  if (options_.shown) thread_ = std::jthread([this] { show(); });
}

Progress::~Progress() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
}

void Progress::show() {
  unpin_this_thread();
  const Instant start = SteadyClock::read();
  const auto stopped_within = [&](Nanoseconds time) {
    MutexLock lock(mutex_);
    return stopped_.wait_for(lock, time, [this]() FARPAGE_REQUIRES(mutex_) { return stop_; });
  };
  if (stopped_within(options_.silence)) return;
  do {
    const std::string text = progress_text(what_, goal_, done_(), SteadyClock::read() - start);
    write_text(options_.fd, std::string(kClearLine) + text);
  } while (!stopped_within(options_.interval));
  write_text(options_.fd, kClearLine);
}

}  // namespace farpage::bench
