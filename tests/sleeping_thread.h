// Waits until another thread sleeps in the kernel, so that the test's next step happens while that
// thread waits, not before.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace farpage {

class SleepingThread {
 public:
  // Called by the thread itself, before it waits.
  void begin() { id_ = ::gettid(); }
  // Called by another thread. Returns which of its sleeps this is.
  uint64_t await() const { return await_after(0); }
  // Waits for a later sleep than that one: it was woken, and sleeps again.
  uint64_t await_after(uint64_t sleep) const {
    while (true) {
      const std::optional<uint64_t> now = present_sleep();
      if (now.value_or(0) > sleep) return *now;
      std::this_thread::yield();
    }
  }
  // Nobody has woken it from that sleep.
  bool sleeps_since(uint64_t sleep) const { return present_sleep() == sleep; }

 private:
  std::optional<uint64_t> present_sleep() const {
    if (id_ == 0) return std::nullopt;
    const uint64_t before = sleeps_begun();
    // Counted twice: it may have fallen asleep in between.
    return sleeps() && sleeps_begun() == before ? std::optional(before) : std::nullopt;
  }
  bool sleeps() const {
    std::ifstream file(path_of("stat"));
    std::string line;
    std::getline(file, line);
    return line.find(") S ") != std::string::npos;
  }
  // Each sleep begins with a voluntary switch to another thread.
  uint64_t sleeps_begun() const {
    constexpr std::string_view kName = "voluntary_ctxt_switches:";
    std::ifstream file(path_of("status"));
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(kName)) return std::stoull(line.substr(kName.size()));
    return 0;
  }
  std::string path_of(const char* name) const {
    return "/proc/self/task/" + std::to_string(id_.load()) + "/" + name;
  }

  std::atomic<pid_t> id_{0};
};

}  // namespace farpage
