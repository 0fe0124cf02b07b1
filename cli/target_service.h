// TargetService: takes targets in as their shims knock, and runs a pager for each.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "coordinator/client.h"
#include "pager/pager.h"
#include "uffd/handover_server.h"

namespace farpage::cli {

// What is known at the end of one target.
struct TargetReport {
  std::string program;
  int pid = 0;
  pager::PagerStats stats;
};

// Threads: one that accepts, one for each target. The client and the transports outlive it.
class TargetService {
 public:
  TargetService(uffd::HandoverServer& server, const pager::PagerOptions& options,
                coordinator::Client& client,
                std::vector<std::unique_ptr<rdma::Transport>>& transports);
  ~TargetService();

  // Waits until every target that was taken in has ended.
  void wait_for_targets();
  // Of those that have ended, and what those that run have so far.
  std::vector<TargetReport> reports() const;

 private:
  struct Session {
    TargetReport report;                  // guarded by mutex_
    std::unique_ptr<pager::Pager> pager;  // guarded by mutex_; null when ended
    bool ended = false;                   // guarded by mutex_
    std::jthread thread;
  };

  void accept_targets();
  void serve(Session& session, uffd::HandedOver target);
  void answer_requests(pager::Pager& pager, const Fd& socket, uint64_t window_address);
  void wait_for_exit(pager::Pager& pager);

  uffd::HandoverServer& server_;
  const pager::PagerOptions options_;
  coordinator::Client& client_;
  std::vector<std::unique_ptr<rdma::Transport>>& transports_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::list<Session> sessions_;  // guarded by mutex_
  std::jthread acceptor_;
};

}  // namespace farpage::cli
