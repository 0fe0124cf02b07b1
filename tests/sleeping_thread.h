// Waits until another thread sleeps in the kernel, so that the test's next step happens while that
// thread waits, not before.
#pragma once

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

namespace farpage {

class SleepingThread {
 public:
  // Called by the thread itself, before it waits.
  void begin() { id_ = ::gettid(); }
  // Called by another thread.
  void await() const {
    while (id_ == 0 || !sleeps()) std::this_thread::yield();
  }

 private:
  bool sleeps() const {
    std::ifstream file("/proc/self/task/" + std::to_string(id_.load()) + "/stat");
    std::string line;
    std::getline(file, line);
    return line.find(") S ") != std::string::npos;
  }

  std::atomic<pid_t> id_{0};
};

}  // namespace farpage
