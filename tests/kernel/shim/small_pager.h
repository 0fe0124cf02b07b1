// SmallPager: a minimal peer for uffd/handover.h: it keeps far pages in a map of this process, and
// serves any number of targets with one thread.
//
// Threads: a target belongs to the pager's thread; a test accesses it by with_target() and
// with_all(), which run there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/strong.h"
#include "uffd/handover.h"

namespace farpage::test {

using PageBytes = std::vector<std::byte>;

struct PagerOptions {
  int welcome_status = 0;
  std::string welcome_reason;
  bool answer_hello = true;
  int fork_status = 0;
  size_t pin_limit_pages = SIZE_MAX;
  // Evict the oldest pages when a target has more than this; 0: never.
  size_t budget_pages = 0;
};

// One process that has handed over its window.
class ServedTarget {
 public:
  ServedTarget(Fd control, const PagerOptions& options);
  ~ServedTarget();

  const uffd::handover::Hello& hello() const { return hello_; }
  // In the window, or in an extent.
  bool holds(uint64_t address) const;
  size_t zero_fills() const { return zero_fills_; }
  size_t evictions() const { return evictions_; }
  size_t refetches() const { return refetches_; }
  size_t most_resident_pages() const { return most_resident_pages_; }
  bool alive() const { return control_.valid(); }
  const std::vector<uffd::handover::Request>& requests() const { return requests_; }
  size_t requests_of(uffd::handover::RequestKind kind) const;
  size_t pinned_pages() const { return pinned_.size(); }

  // Stores the pages and lets the target's agent drop them. Absent pages are skipped.
  void evict(const std::vector<uint64_t>& pages);
  // The content that the target gets when it touches the page again.
  void put(uint64_t address, PageBytes bytes);
  const PageBytes* stored(uint64_t address) const;
  // The next fault of the page is counted and not answered.
  void hold(uint64_t page) { held_pages_.insert(page); }
  size_t held_faults() const { return held_faults_; }
  // Commands the agent and waits; the results, none when the target ended meanwhile. Faults and
  // events are answered in between: a command may raise one and wait for it.
  std::vector<int> command(uffd::handover::CommandKind kind,
                           const std::vector<uint64_t>& addresses);
  // Loses the connection, as a pager does that takes the target's requests no more.
  void hang_up();
  // Lets go of the lifeline, as the kernel does for a pager that has died.
  void end_lifeline();

  // For the pager's loop.
  int control_fd() const { return control_.get(); }
  int userfault_fd() const { return userfault_.get(); }
  void on_control();
  void on_userfault();

 private:
  void take_hello();
  void await_lifeline();
  void read_events();
  void take(const uffd::handover::Request& request);
  void answer(const uffd::handover::Request& request);
  int pin(const uffd::handover::Request& request);
  void on_missing(uint64_t page);
  void on_write_protected(uint64_t page);
  void install(uint64_t page);
  void keep_budget();
  void forget(uint64_t begin, uint64_t end);
  bool protect(uint64_t page, bool on);
  void wake(uint64_t page);
  void close();

  const PagerOptions options_;
  Fd control_;
  Fd lifeline_;
  Fd userfault_;
  Mapping ring_memory_;
  uffd::handover::Hello hello_;
  std::vector<uffd::handover::Request> requests_;
  std::set<std::pair<uint64_t, uint64_t>> extents_;
  std::unordered_map<uint64_t, PageBytes> store_;
  std::unordered_set<uint64_t> resident_;
  std::unordered_set<uint64_t> held_pages_;
  std::unordered_set<uint64_t> pinned_;
  size_t held_faults_ = 0;
  std::deque<uint64_t> order_;
  size_t zero_fills_ = 0;
  size_t evictions_ = 0;
  size_t refetches_ = 0;
  size_t most_resident_pages_ = 0;
};

class SmallPager {
 public:
  explicit SmallPager(PagerOptions options = {});
  ~SmallPager();
  SmallPager(const SmallPager&) = delete;
  SmallPager& operator=(const SmallPager&) = delete;

  const std::string& socket_path() const { return socket_path_; }

  // Runs `work` on the pager's thread and returns what it returns.
  template <typename Work>
  auto with_all(Work work) {
    using Value = decltype(work(std::declval<std::vector<std::unique_ptr<ServedTarget>>&>()));
    std::packaged_task<Value()> task([&] { return work(targets_); });
    auto value = task.get_future();
    run([&task] { task(); });
    return value.get();
  }
  template <typename Work>
  auto with_target(size_t index, Work work) {
    return with_all([&](auto& targets) { return work(*targets.at(index)); });
  }

 private:
  void run(std::function<void()> work);
  void loop();
  void accept_one();

  const PagerOptions options_;
  std::string folder_;
  std::string socket_path_;
  Fd listener_;
  Fd wake_;
  std::vector<std::unique_ptr<ServedTarget>> targets_;  // pager thread only
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  std::thread thread_;
};

}  // namespace farpage::test
