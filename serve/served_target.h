// ServedTarget: one target of a run, from its hand-over to its end: its requests are answered, and
// its share of the budget is given and taken.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/mutex.h"
#include "pager/engine.h"
#include "serve/budget_group.h"
#include "serve/served_state.h"
#include "serve/wait_pool.h"
#include "serve/watch.h"
#include "uffd/handover_server.h"

namespace farpage::serve {

// The final report of one target.
struct TargetReport {
  std::string program;
  int pid = 0;
  pager::PagerCounts counts;
  pager::PagerLatencies latencies;
  std::shared_ptr<const pager::TouchRecorder> touches;  // null: not recorded
};

// What a successor knows of the children of a fork that was under way.
struct FoundChildren {
  size_t adopted = 0;    // they have records of their own
  int userfaultfd = -1;  // of the one that is in no record; -1: there is none
  bool unknown = false;  // which of several it is, is not known
};

class ServedTarget;

// What all targets of a service share. It outlives them.
struct TargetHost {
  boost::asio::io_context& control;
  WaitPool& waits;
  pager::Engine& engine;
  BudgetGroup& budgets;
  const ServedState& state;
  uint64_t run = 0;  // its number in the state
  pager::ForkMode fork;
  uint64_t slab_bytes = 0;
  // Both are called on the control thread.
  std::function<void(std::shared_ptr<ServedTarget>)> on_child;
  std::function<void(ServedTarget&)> on_end;
  std::function<void()> on_resumed;  // one of resume() is served, or cannot be
};

// Threads: the control thread, but for what is marked. Calls that may wait run in the pool, one at
// a time for each kind (a request, arriving children), and keep the target alive.
class ServedTarget : public std::enable_shared_from_this<ServedTarget> {
 public:
  // A process that has handed its memory over: the engine serves it, then it is welcomed.
  static std::shared_ptr<ServedTarget> start(TargetHost& host, uffd::HandedOver target);
  // A process of a dead engine: this one goes on serving it. One that cannot be served is killed.
  static std::shared_ptr<ServedTarget> resume(TargetHost& host, uint64_t number,
                                              const ServedRecord& record, FoundChildren children);

  uint64_t number() const { return number_; }  // in the order of their beginnings
  // A forked child of an attached program: it is served, and nothing of it is evicted.
  bool lacks_agent() const;
  uffd::AgentlessChild described() const;
  // It has forked, or may have at its end, and TargetHost::on_child has not been called yet; or it
  // is such a child, and not served yet.
  bool may_have_new_children() const;
  // It has one now, which was injected; it is welcomed.
  void take_agent(uffd::HandedOver agent);
  // Now, or at its end. nullopt: it was never served, or it is a forked child with hardly a fault:
  // most exec, or end soon.
  std::optional<TargetReport> report();
  // The same while other threads work on it; nullopt also while it begins or ends.
  std::optional<TargetReport> live_report();

 private:
  enum class Step : uint8_t { kStarting, kAwaitingHello, kServing, kAwaitingExit, kEnded };

  ServedTarget(TargetHost& host, uint64_t number)
      : host_(host), number_(number), timer_(host.control) {}

  pager::TargetOptions target_options(std::string name) const;
  pager::OnChild on_child();
  // In the pool: a child has arrived; its parent's thread waits for nothing but this.
  void take_child(pager::Inheritance inheritance);
  bool adopt(pager::Inheritance& inheritance, pager::Pager* parent);
  void adopt_later(pager::Inheritance inheritance);

  // Runs `call` in the pool, then `then` here.
  template <typename Call, typename Then>
  void in_pool(Call&& call, Then&& then);
  template <typename Then>
  void after(Milliseconds time, Then&& then);

  void take_statistics(const pager::Pager& pager);
  // Writes the record down, after `change`. Any thread.
  Status note(const std::function<void(ServedRecord&)>& change);
  Status prepare_answers();
  // In the pool.
  Status serve(uffd::HandedOver& target);
  Status serve_again(uffd::HandedOver& target, const ServedRecord& record, FoundChildren children);
  Status take_over(uffd::HandedOver& target, const ServedRecord& record, FoundChildren children,
                   std::unique_ptr<uffd::AddressSpace>& space);
  void served_again(const ServedRecord& record, const Status& status);
  bool greet_again(const ServedRecord& record);
  void fork_again(const ServedRecord& record);
  void begin_fork_later(Fd child_socket);
  void served(const uffd::HandedOver& target, const Status& status);
  void await_hello();
  void greet();
  void await_requests();
  void on_request();
  void answer(const uffd::TargetRequest& request);
  Status add_extent(uint64_t begin, uint64_t end);
  bool pin(std::span<const uffd::PageRun> runs);
  int begin_fork(Fd child_socket);
  void note_fork_over();
  void keep_extents(uffd::AddressSpace& space) const;
  Status note_child();
  void keep_lifeline();
  // The request's descriptor, while it stays on the socket.
  Fd copy_descriptor() const;
  // The request's record is written: off the socket with it.
  void take_request();
  void reply(int status);
  void await_attention();
  void on_attention();
  void share_budget();
  void end_trial();
  void hang_up();
  void await_exit();
  void end();

  TargetHost& host_;
  const uint64_t number_;
  TargetReport report_;
  bool is_child_ = false;
  bool attached_ = false;  // it was not started with far memory, or an ancestor was not
  Instant begun_ = SteadyClock::read();
  struct Parent {
    uint64_t number = 0;
    ServedRecord record;  // at the fork
  };
  std::optional<Parent> parent_;
  bool has_budget_ = false;
  uint64_t free_pages_ = 0;  // of a child on trial
  Step step_ = Step::kStarting;
  bool ending_ = false;  // end() was called
  bool adopting_ = false;
  size_t calls_ = 0;  // in the pool
  std::unique_ptr<pager::Pager> pager_;
  Fd socket_;
  Fd ring_;                          // for a successor
  uffd::handover::Request request_;  // the one that is being answered
  bool request_taken_ = false;       // off the socket
  Mutex record_mutex_;
  ServedRecord record_ FARPAGE_GUARDED_BY(record_mutex_);
  bool record_erased_ FARPAGE_GUARDED_BY(record_mutex_) = false;
  // Of the request that was carried out last, for a successor.
  struct LastAnswer {
    uint64_t number = 0;
    int status = 0;
  };
  LastAnswer& last_answer() const { return *reinterpret_cast<LastAnswer*>(answers_.data()); }
  Mapping answers_;
  Fd lifeline_;  // closed when the target's memory is gone, or by this process's death
  std::unique_ptr<Watch> requests_;
  std::unique_ptr<Watch> attention_;
  boost::asio::steady_timer timer_;
  Mutex child_socket_mutex_;
  Fd child_socket_ FARPAGE_GUARDED_BY(child_socket_mutex_);  // of the fork under way
};

}  // namespace farpage::serve
