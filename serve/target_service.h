// TargetService: accepts targets when their shims connect or when targets fork, has the engine
// serve them, and answers their requests.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "pager/engine.h"
#include "serve/budget_group.h"
#include "uffd/handover_server.h"

namespace farpage::serve {

// The final report of one target.
struct TargetReport {
  std::string program;
  int pid = 0;
  pager::PagerCounts counts;
  pager::PagerLatencies latencies;
};

// "sort (pid 4711)". pid 0: a child that has not told it yet.
std::string label_of(std::string_view program, int pid);

// Threads: one that accepts, one for each target. The engine must outlive it.
class TargetService {
 public:
  // options.local_bytes is the budget of what `scope` says.
  TargetService(uffd::HandoverServer& server, pager::Engine& engine,
                const pager::PagerOptions& options, BudgetScope scope);
  ~TargetService();

  // Waits until every accepted target has ended.
  void wait_for_targets();
  // The reports of ended targets, and the current state of running ones. Omits forked children that
  // had hardly a fault: most exec, or end soon.
  std::vector<TargetReport> reports();
  // Sets the budget; the result lists the processes that have a pager. kInvalid, kConflict: as
  // BudgetGroup::set_local().
  Result<uffd::ResizedProcesses> set_local(uint64_t local_bytes);

 private:
  struct Session {
    TargetReport report;                  // guarded by mutex_
    std::unique_ptr<pager::Pager> pager;  // guarded by mutex_; null before start and after end
    bool is_child = false;                // const; of a fork
    bool has_budget = false;              // its thread's
    bool ended = false;                   // guarded by mutex_
    Fd child_socket;                      // guarded by mutex_; of the fork in progress
    std::jthread thread;
  };

  void accept_arrivals();
  void take_in(uffd::HandedOver target);
  void resize(const uffd::ResizeCall& call);
  pager::TargetOptions target_options(std::string name) const;
  void serve(Session& session, uffd::HandedOver target);
  void take_child(Session& parent, pager::Inheritance inheritance);
  void serve_child(Session& session, pager::Inheritance inheritance, Fd socket);
  bool greet_child(Session& session, pager::Pager& pager, const Fd& socket);
  Result<pager::Pager*> adopt(Session& session, pager::Inheritance& inheritance);
  int answer(Session& session, pager::Pager& pager, uffd::TargetRequest request);
  int begin_fork(Session& session, pager::Pager& pager, Fd child_socket);
  // Returns when the control socket is closed.
  void answer_requests(Session& session, pager::Pager& pager, const Fd& socket);
  void wait_for_exit(pager::Pager& pager);
  pager::OnChild children_of(Session& session);
  pager::Pager& keep(Session& session, std::unique_ptr<pager::Pager> pager);
  // From now on it shares the budget.
  void share_budget(Session& session, pager::Pager& pager);
  // A forked child gets a budget.
  void end_trial(Session& session, pager::Pager& pager);
  // With mutex_ held.
  static bool is_reported(const Session& session);
  // With mutex_ held: copies the current statistics of the pager.
  static void take_statistics(TargetReport& report, const pager::Pager& pager);
  void end(Session& session);
  // With mutex_ held: joins the threads of ended sessions and removes those without a report.
  void reap();

  uffd::HandoverServer& server_;
  pager::Engine& engine_;
  const pager::ForkMode fork_;
  BudgetGroup budgets_;  // of the pagers in sessions_
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::list<Session> sessions_;  // guarded by mutex_
  std::jthread acceptor_;
};

}  // namespace farpage::serve
