// HostPager: a pager for programs of `farpage run`: of a host, for any number of `farpage run
// --pager`, or of one program.
//
// Each program is a run: a budget of local memory, a hand-over socket that its `farpage run` has
// brought along, and a connection on which that waits for the end. All runs share one engine, its
// threads and its connections to the memory nodes. The budgets together never exceed the pool.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pager/engine.h"
#include "pager/options.h"
#include "serve/pager_messages.h"
#include "serve/served_state.h"

namespace farpage::serve {

// Userfaultfds of forked children that are in no record.
struct Orphans {
  std::vector<int> living;
  size_t ended = 0;
};

struct HostPagerOptions {
  pager::PagerOptions pager;  // local_bytes and fork are those of each program
  uint64_t pool_bytes = std::numeric_limits<uint64_t>::max();  // what all runs may have together
  BudgetScope scope = BudgetScope::kGroup;
  // Called with the reports of a run, at its end; `whole`: no engine before this one was killed.
  std::function<void(const std::vector<TargetReport>&, bool whole)> on_reports = {};
};

// Threads: the control thread, which runs `control`, makes it and makes all calls.
class HostPager {
 public:
  // Listens on `path`, for this user and root. kConflict: another process listens there. All
  // outlive the pager. With the state of a dead pager it goes on with that one's socket, runs and
  // targets.
  static Result<std::unique_ptr<HostPager>> listen(boost::asio::io_context& control,
                                                   const std::string& path, pager::Engine& engine,
                                                   HostPagerOptions options,
                                                   const ServedState& state);
  // Serves one run, which begins on this unix stream socket; a dead pager's, too, on the same one.
  // It is closed at the end.
  static Result<std::unique_ptr<HostPager>> serve_one(boost::asio::io_context& control,
                                                      int connection, pager::Engine& engine,
                                                      HostPagerOptions options,
                                                      const ServedState& state);
  // Removes the socket; `control` may run on.
  ~HostPager();
  HostPager(const HostPager&) = delete;
  HostPager& operator=(const HostPager&) = delete;

  // No further run begins.
  void close();
  bool is_open() const { return acceptor_.is_open() || awaits_one_; }
  bool has_runs() const { return !runs_.empty(); }
  // Runs `control` until no run is there or can begin, and the answers are sent.
  void run_to_end();
  // The processes of all runs.
  size_t target_count() const;

 private:
  struct Run;
  using Socket = boost::asio::local::stream_protocol::socket;

  bool is_of_host() const { return !path_.empty(); }
  HostPager(boost::asio::io_context& control, std::string path, pager::Engine& engine,
            HostPagerOptions options, const ServedState& state);
  Status open();
  // The runs of a dead pager.
  Status take_over();
  // `number`: of the run in the state.
  Status serve(const std::shared_ptr<Run>& run, uint64_t number, const RunRecord& record,
               Fd listener);
  Status note(const Run& run) const;
  void note_taken_over(size_t processes) const;
  void look_for_finish(Run& run) const;
  void note_finish(Run& run, const FinishRun& finish) const;
  Result<Orphans> find_orphans() const;
  Status note_served_children(std::map<uint64_t, ServedRecord>& targets, Orphans& orphans);
  void accept();
  // A connection on which a run may begin.
  void await_run(Socket socket);
  // The next request of a connection, after the answer to the last one was sent.
  void next(const std::shared_ptr<Run>& run);
  void on_readable(const std::shared_ptr<Run>& run);
  void on_request(const std::shared_ptr<Run>& run, std::string_view line);
  Status begin(const std::shared_ptr<Run>& run, const BeginRun& begin);
  Status check_local(const Run& run, uint64_t local_bytes) const;
  Status prepare_upgrade(const Upgrade& upgrade) const;
  // `sent` is called when it has been sent, or cannot be.
  void answer(const std::shared_ptr<Run>& run, std::string line, std::function<void()> sent = {});
  void forget(Run& run) const;
  // Its connection is closed, or its program has ended: no more is asked.
  void on_over(const std::shared_ptr<Run>& run);
  // Once its targets have ended.
  void remove_later(const std::shared_ptr<Run>& run);
  void remove(const std::shared_ptr<Run>& run);
  RunReport report_of(const std::vector<TargetReport>& reports, const Run& run,
                      int exit_status) const;
  PagerStatus status() const;
  // A handler that does nothing once the pager is destroyed: one that has been queued still runs.
  template <typename Handler>
  auto while_here(Handler handler) {
    return [here = std::weak_ptr<const bool>(here_),
            handler = std::move(handler)](auto&&... arguments) mutable {
      if (!here.expired()) handler(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  boost::asio::io_context& control_;
  const std::string path_;
  pager::Engine& engine_;
  const HostPagerOptions options_;
  const ServedState& state_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::list<std::shared_ptr<Run>> runs_;  // those that have begun
  bool takes_over_ = false;               // some runs were a dead pager's
  bool awaits_one_ = false;               // the run of serve_one() has not begun
  size_t answers_ = 0;                    // that are being sent
  bool upgrades_ = false;                 // once the answers are sent
  size_t resuming_ = 0;                   // processes of a dead pager
  const std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::serve
