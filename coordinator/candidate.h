// Candidate: takes part in the election, and has a cluster in the seat while it leads.
//
// Each term begins as a coordinator does that was restarted: its cluster reads the store, and nodes
// and regions count as heard. The cluster of a term that has ended is dropped.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "coordinator/cluster.h"
#include "coordinator/election.h"
#include "coordinator/seat.h"

namespace farpage::coordinator {

// The cluster of a term; its calls to nodes are to end with the term (fenced_agents()).
using MakeCluster = std::function<Result<std::shared_ptr<Cluster>>(std::unique_ptr<Store> store,
                                                                   std::shared_ptr<const Term>)>;

// Refuses the calls that change something at a node while the term is not held: kUnavailable.
std::unique_ptr<AgentClient> fenced_agents(std::unique_ptr<AgentClient> agents,
                                           std::shared_ptr<const Term> term);

// Threads: any; one of its own.
class Candidate {
 public:
  // `seat` must outlive it.
  Candidate(std::unique_ptr<Election> election, std::string url, MakeCluster make, Seat& seat);
  ~Candidate();  // as stop() and resign()
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  // Leaves the seat and wakes the long polls. The requests that run can still write.
  void stop();
  // After stop(): another coordinator can be elected at once.
  void resign();

 private:
  void run();
  void lead(Campaign won);
  bool is_stopping() const;
  void wait(Milliseconds limit) const;
  void tell(const std::string& what);

  const std::unique_ptr<Election> election_;
  const std::string url_;
  const MakeCluster make_;
  Seat& seat_;
  std::string told_;            // by run(): what was logged last
  std::shared_ptr<Term> term_;  // of run(), and after its end of resign()
  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace farpage::coordinator
