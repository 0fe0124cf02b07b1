// BorrowerThread: the thread on which all borrowers of an engine talk to the coordinator.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "pager/links/cluster_room.h"

namespace farpage::pager {

class Borrower;
class Repairer;

// Borrowers take turns, one call of Borrower::serve() each, when they are rung or due. A call that
// the coordinator does not answer delays the others; they would wait for the same coordinator.
//
// Threads: one of its own; all calls from any.
class BorrowerThread {
 public:
  static Result<std::unique_ptr<BorrowerThread>> create();
  // All borrowers have been removed.
  ~BorrowerThread();

  // Who fills the replicas of all borrowers; null: nobody. Before the first add().
  void use(Repairer* repairer) { repairer_ = repairer; }
  Repairer* repairer() const { return repairer_; }
  // Of the thread itself: one for all borrowers.
  ClusterRoomWatch& room_watch() { return room_watch_; }

  void add(Borrower& borrower);
  // Returns when the borrower is not being served, and will not be.
  void remove(Borrower& borrower);
  // Some borrower was rung.
  void ring() const { bell_.ring(); }
  // Of a borrower that has ended, which the coordinator has not answered: it is asked again as long
  // as there is this thread. Other targets of the engine have data sessions of the same group, so
  // the region would not end by silence. The client outlives the thread.
  void give_back(coordinator::Client& client, const RegionId& region);

 private:
  struct Leftover {
    coordinator::Client* client = nullptr;
    RegionId region;
    Instant due{0};
  };
  struct Member {
    Borrower* borrower = nullptr;
    Instant due{0};
  };

  explicit BorrowerThread(Doorbell bell);
  void run();
  // The next one that is rung, else that is due; null: none before `until`.
  Borrower* next(Instant now, Instant& until) FARPAGE_REQUIRES(mutex_);
  void set_due(const Borrower& borrower, Instant due) FARPAGE_REQUIRES(mutex_);
  // One that is due; nullopt: none before `until`.
  std::optional<Leftover> take_leftover(Instant now, Instant& until) FARPAGE_REQUIRES(mutex_);

  const Doorbell bell_;
  Repairer* repairer_ = nullptr;
  ClusterRoomWatch room_watch_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<Member> members_ FARPAGE_GUARDED_BY(mutex_);
  size_t next_ FARPAGE_GUARDED_BY(mutex_) = 0;  // where the search begins
  Borrower* served_ FARPAGE_GUARDED_BY(mutex_) = nullptr;
  std::deque<Leftover> leftovers_ FARPAGE_GUARDED_BY(mutex_);
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace farpage::pager
