// Seat: the cluster of this coordinator while it leads, or the name of the one that leads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "coordinator/cluster.h"
#include "coordinator/election.h"
#include "coordinator/event_watchers.h"

namespace farpage::coordinator {

// Threads: any.
class Seat {
 public:
  // `max_watchers`: calls that wait for events, of each cluster.
  explicit Seat(uint32_t max_watchers) : max_watchers_(max_watchers) {}
  ~Seat() { leave_to(""); }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  // `term` null: for good. `url`: of this coordinator.
  void take(std::shared_ptr<Cluster> cluster, std::shared_ptr<const Term> term, std::string url);
  // Answers those who wait for events. Empty: nobody, as far as is known.
  void leave_to(std::string leader);
  // The URL of this coordinator, which has the seat.
  void set_url(std::string url);

  // Null: this coordinator does not lead, or not at the moment. Who has it may use it to the end of
  // its request.
  std::shared_ptr<Cluster> cluster() const;
  // Those of that cluster; null as above.
  std::shared_ptr<EventWatchers> watchers() const;
  // Empty: not known, or nobody.
  std::string leader() const;

 private:
  bool is_held() const FARPAGE_REQUIRES(mutex_);

  const uint32_t max_watchers_;
  mutable Mutex mutex_;
  std::shared_ptr<Cluster> cluster_ FARPAGE_GUARDED_BY(mutex_);
  std::shared_ptr<EventWatchers> watchers_ FARPAGE_GUARDED_BY(mutex_);  // of cluster_
  std::shared_ptr<const Term> term_ FARPAGE_GUARDED_BY(mutex_);
  std::string leader_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::coordinator
