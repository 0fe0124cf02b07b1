// Requests: what a process, and the test, ask of a target's pager. They wait where a socket keeps
// them: those that a pager has not carried out when it is killed are its successor's.
#pragma once

#include <deque>
#include <functional>

#include "base/doorbell.h"
#include "pager/pager.h"
#include "scheduler.h"

namespace farpage::simulation {

// Threads: fibers of one scheduler.
class Requests {
 public:
  using Call = std::function<void(pager::Pager&)>;

  // `queued`: calls are carried out by serve(), one at a time; otherwise by whoever asks.
  Requests(Scheduler& scheduler, bool queued)
      : scheduler_(scheduler), queued_(queued), bell_(std::move(*Doorbell::create())) {}

  // Returns when it is done, or will never be: the target is gone.
  void ask(const Call& call) {
    if (!queued_) {
      call(*pager_);
      return;
    }
    if (closed_) return;
    Entry entry{&call};
    entries_.push_back(&entry);
    bell_.ring();
    while (!entry.done) (void)scheduler_.wait(&entry, Nanoseconds(-1));
  }

  void connect(pager::Pager* pager) {
    pager_ = pager;
    if (pager != nullptr) bell_.ring();  // for what its predecessor has begun
  }
  const Doorbell& bell() const { return bell_; }
  // As a system call that a dead process did not return from, a call is repeated whole.
  void serve() {
    (void)bell_.wait(Milliseconds(0));
    while (!entries_.empty() && pager_ != nullptr) {
      const Entry& entry = *entries_.front();
      (*entry.call)(*pager_);
      finish_first();
    }
  }
  // Nobody serves any more.
  void close() {
    closed_ = true;
    while (!entries_.empty()) finish_first();
  }

 private:
  struct Entry {
    const Call* call;
    bool done = false;
  };
  void finish_first() {
    Entry& entry = *entries_.front();
    entries_.pop_front();
    entry.done = true;
    scheduler_.notify(&entry);
  }

  Scheduler& scheduler_;
  const bool queued_;
  const Doorbell bell_;
  bool closed_ = false;
  pager::Pager* pager_ = nullptr;
  std::deque<Entry*> entries_;
};

}  // namespace farpage::simulation
