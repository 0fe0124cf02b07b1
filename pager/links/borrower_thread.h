// BorrowerThread: the thread on which all borrowers of an engine talk to the coordinator.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/result.h"

namespace farpage::pager {

class Borrower;

// Borrowers take turns, one call of Borrower::serve() each, when they are rung or due. A call that
// the coordinator does not answer delays the others; they would wait for the same coordinator.
//
// Threads: one of its own; all calls from any.
class BorrowerThread {
 public:
  static Result<std::unique_ptr<BorrowerThread>> create();
  // All borrowers have been removed.
  ~BorrowerThread();

  void add(Borrower& borrower);
  // Returns when the borrower is not being served, and will not be.
  void remove(Borrower& borrower);
  // Some borrower was rung.
  void ring() const { bell_.ring(); }

 private:
  struct Member {
    Borrower* borrower = nullptr;
    Instant due{0};
  };

  explicit BorrowerThread(Doorbell bell);
  void run();
  // With mutex_ held: the next one that is rung or due; null: none before `until`.
  Borrower* next(Instant now, Instant& until);
  void set_due(const Borrower& borrower, Instant due);

  const Doorbell bell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;  // guarded by mutex_
  size_t next_ = 0;              // guarded by mutex_: where the search begins
  Borrower* served_ = nullptr;   // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  std::jthread thread_;
};

}  // namespace farpage::pager
