// TargetSet: the targets of one engine, as its fault workers find those that have events.
//
// One target is the common case: its own descriptor is watched and read. Several are found through
// an epoll set, which costs a system call more for each round.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/result.h"

namespace farpage::pager {

struct Target;

// Threads: any. A worker calls for_each_ready() inside a section of EventReaders, so that remove()
// can be followed by a wait for all sections.
class TargetSet {
 public:
  static Result<TargetSet> create();
  TargetSet(TargetSet&& other) noexcept;

  // True: descriptor() has changed, and who waits for the former one must look again.
  Result<bool> add(Target& target, int events);
  bool remove(Target& target);

  // Readable when a target has events, as long as the set does not change.
  int descriptor() const { return watched_.load(std::memory_order_acquire); }
  bool has_one() const { return sole_.load(std::memory_order_relaxed) != nullptr; }
  // Calls `visit` with each target that may have events.
  template <typename Visit>
  void for_each_ready(Visit&& visit) const {
    // Sequentially consistent, as the begin of the section: remove() then either sees the section,
    // or is seen here.
    if (Target* sole = sole_.load(std::memory_order_seq_cst); sole != nullptr) {
      visit(*sole);
      return;
    }
    std::array<epoll_event, kMaxReady> ready;
    const int count = ::epoll_wait(epoll_.get(), ready.data(), kMaxReady, 0);
    for (int i = 0; i < count; ++i)
      visit(*static_cast<Target*>(ready[static_cast<size_t>(i)].data.ptr));
  }

 private:
  static constexpr int kMaxReady = 16;  // of one call; the kernel gives the others their turn next
  struct Member {
    Target* target = nullptr;
    int events = -1;
  };

  explicit TargetSet(Fd epoll) : epoll_(std::move(epoll)), watched_(epoll_.get()) {}
  bool publish() FARPAGE_REQUIRES(mutex_);  // true: another descriptor

  Fd epoll_;
  std::atomic<Target*> sole_{nullptr};
  std::atomic<int> watched_;
  Mutex mutex_;
  std::vector<Member> members_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::pager
