// CallLog: what the fakes of one test were asked to do, in order, as short lines.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "uffd/address_space.h"

namespace farpage::pager {

// "7" for one page, "7+3" for three from page 7 on.
inline std::string text_of(uffd::PageRun run) {
  const std::string first = std::to_string(run.first.value);
  return run.pages == 1 ? first : first + "+" + std::to_string(run.pages);
}

// Threads: any.
class CallLog {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  // All lines since the last take().
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  // The lines that begin with `prefix`.
  std::vector<std::string> of(const std::string& prefix) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    std::ranges::copy_if(lines_, std::back_inserter(found),
                         [&](const std::string& line) { return line.starts_with(prefix); });
    return found;
  }
  size_t count(const std::string& prefix) const { return of(prefix).size(); }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

}  // namespace farpage::pager
