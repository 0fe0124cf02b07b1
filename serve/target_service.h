// TargetService: accepts targets when their shims connect or when targets fork, has the engine
// serve them, and answers their requests.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/clock.h"
#include "pager/engine.h"
#include "serve/budget_group.h"
#include "serve/served_target.h"
#include "serve/wait_pool.h"
#include "serve/watch.h"
#include "uffd/handover_server.h"

namespace farpage::serve {

// Threads: the control thread, which runs `control`, makes it and makes all calls. What may wait
// runs in a pool, whose threads end with the service.
class TargetService {
 public:
  // options.local_bytes is the budget of what `scope` says. All outlive the service. `run`: number
  // of the program in the state.
  TargetService(boost::asio::io_context& control, uffd::HandoverServer& server,
                pager::Engine& engine, const pager::PagerOptions& options, BudgetScope scope,
                const ServedState& state, uint64_t run);
  // Runs `control` until every target has ended: its memory must not vanish before.
  ~TargetService();

  // A target of the same run in a dead engine.
  void resume(uint64_t number, const ServedRecord& record, FoundChildren children);

  // Called for each of them, when it is served or cannot be.
  void when_resumed(std::function<void()> call) { host_.on_resumed = std::move(call); }

  // Some accepted target has not ended, or a connection has not said what it wants.
  bool has_targets() const { return !targets_.empty() || !newcomers_.empty(); }
  size_t target_count() const { return targets_.size(); }
  uint64_t local_bytes() const { return budgets_.local_bytes(); }
  // Called each time has_targets() has become false. It must not end the service.
  void when_empty(std::function<void()> call) { when_empty_ = std::move(call); }
  // Called before another budget is set; a failure refuses it.
  void check_local(std::function<Status(uint64_t local_bytes)> call) {
    check_local_ = std::move(call);
  }
  // Of those that are being served.
  std::vector<TargetReport> live_reports() const;
  // In the order in which they began. Omits forked children that had hardly a fault: most exec, or
  // end soon.
  std::vector<TargetReport> reports() const;

 private:
  struct Newcomer;
  struct Question {
    uffd::ChildrenCall call;
    Instant deadline;
  };

  void keep(std::shared_ptr<ServedTarget> target);
  void await_connections();
  void accept();
  void take_in(const std::shared_ptr<Newcomer>& newcomer);
  void leave(const std::shared_ptr<Newcomer>& newcomer);
  void note_end() const;
  void take_agent(uffd::HandedOver agent);
  std::vector<uffd::AgentlessChild> agentless_children() const;
  void tell_children();
  void resize(const uffd::ResizeCall& call);
  Result<uffd::ResizedProcesses> set_local(uint64_t local_bytes);

  boost::asio::io_context& control_;
  uffd::HandoverServer& server_;
  BudgetGroup budgets_;
  WaitPool waits_;
  TargetHost host_;
  Watch connections_;
  std::set<std::shared_ptr<Newcomer>> newcomers_;
  std::vector<Question> questions_;  // for children, that are not answered yet
  boost::asio::steady_timer questions_timer_;
  // By number.
  std::map<uint64_t, std::shared_ptr<ServedTarget>> targets_;
  std::map<uint64_t, TargetReport> ended_;
  std::function<void()> when_empty_;
  std::function<Status(uint64_t)> check_local_;
  std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::serve
