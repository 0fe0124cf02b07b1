// HostPager: the pager of a host, for the programs of any number of `farpage run --pager`.
//
// Each program is a run: a budget of local memory, a hand-over socket that its `farpage run` has
// brought along, and a connection on which that waits for the end. All runs share one engine, its
// threads and its connections to the memory nodes. The budgets together never exceed the pager's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
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

// Threads: the control thread, which runs `control`, makes it and makes all calls.
class HostPager {
 public:
  // Listens on `path`, for this user and root. options.local_bytes is what all runs may have
  // together. kConflict: another process listens there. All outlive the pager. With the state of a
  // dead pager it goes on with that one's socket, runs and targets.
  static Result<std::unique_ptr<HostPager>> listen(boost::asio::io_context& control,
                                                   const std::string& path, pager::Engine& engine,
                                                   const pager::PagerOptions& options,
                                                   const ServedState& state);
  // Removes the socket; `control` may run on.
  ~HostPager();
  HostPager(const HostPager&) = delete;
  HostPager& operator=(const HostPager&) = delete;

  // No further run begins.
  void close();
  bool is_open() const { return acceptor_.is_open(); }
  bool has_runs() const { return !runs_.empty(); }
  // The processes of all runs.
  size_t target_count() const;
  // Answers that are being sent.
  bool has_answers() const { return answers_ > 0; }

 private:
  struct Run;
  using Socket = boost::asio::local::stream_protocol::socket;

  HostPager(boost::asio::io_context& control, std::string path, pager::Engine& engine,
            const pager::PagerOptions& options, const ServedState& state);
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
  // The next request of a connection, after the answer to the last one was sent.
  void next(const std::shared_ptr<Run>& run);
  void on_readable(const std::shared_ptr<Run>& run);
  void on_request(const std::shared_ptr<Run>& run, std::string_view line);
  Status begin(const std::shared_ptr<Run>& run, const BeginRun& begin);
  Status check_local(const Run& run, uint64_t local_bytes) const;
  Status prepare_upgrade(const Upgrade& upgrade) const;
  void answer(const std::shared_ptr<Run>& run, std::string line);
  // Its connection is closed, or its program has ended: no more is asked.
  void on_over(const std::shared_ptr<Run>& run);
  // Once its targets have ended.
  void remove_later(const std::shared_ptr<Run>& run);
  void remove(const std::shared_ptr<Run>& run);
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
  const pager::PagerOptions options_;
  const ServedState& state_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::list<std::shared_ptr<Run>> runs_;  // those that have begun
  size_t answers_ = 0;                    // that are being sent
  bool upgrades_ = false;                 // once the answers are sent
  size_t resuming_ = 0;                   // processes of a dead pager
  const std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::serve
