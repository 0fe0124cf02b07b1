// Seat: the cluster of this coordinator while it leads, or the name of the one that leads.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "coordinator/cluster.h"
#include "coordinator/election.h"

namespace farpage::coordinator {

// Threads: any.
class Seat {
 public:
  // `term` null: for good. `url`: of this coordinator.
  void take(std::shared_ptr<Cluster> cluster, std::shared_ptr<const Term> term, std::string url);
  // Empty: nobody, as far as is known.
  void leave_to(std::string leader);

  // Null: this coordinator does not lead, or not at the moment. Who has it may use it to the end of
  // its request.
  std::shared_ptr<Cluster> cluster() const;
  // Empty: not known, or nobody.
  std::string leader() const;

 private:
  bool is_held() const FARPAGE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<Cluster> cluster_ FARPAGE_GUARDED_BY(mutex_);
  std::shared_ptr<const Term> term_ FARPAGE_GUARDED_BY(mutex_);
  std::string leader_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::coordinator
