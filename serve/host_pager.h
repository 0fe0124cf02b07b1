// HostPager: the pager of a host, for the programs of any number of `farpage run --pager`.
//
// Each program is a run: a budget of local memory, a hand-over socket that its `farpage run` has
// brought along, and a connection on which that waits for the end. All runs share one engine, its
// threads and its connections to the memory nodes. The budgets together never exceed the pager's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "pager/engine.h"
#include "pager/options.h"
#include "serve/pager_messages.h"

namespace farpage::serve {

// Threads: the control thread, which runs `control`, makes it and makes all calls.
class HostPager {
 public:
  // Listens on `path`: of this user alone, or of a group's members, too. options.local_bytes is
  // what all runs may have together. kConflict: another process listens there. All outlive the
  // pager.
  static Result<std::unique_ptr<HostPager>> listen(boost::asio::io_context& control,
                                                   const std::string& path,
                                                   std::optional<gid_t> group,
                                                   pager::Engine& engine,
                                                   const pager::PagerOptions& options);
  // Call it without runs only. Removes the socket.
  ~HostPager();
  HostPager(const HostPager&) = delete;
  HostPager& operator=(const HostPager&) = delete;

  // No further run begins.
  void close();
  // Programs that have not ended, or answers that have not been read.
  bool is_busy() const { return !runs_.empty() || answers_ > 0; }
  // How many processes they have.
  size_t targets() const;

 private:
  struct Run;
  using Socket = boost::asio::local::stream_protocol::socket;

  HostPager(boost::asio::io_context& control, std::string path, pager::Engine& engine,
            const pager::PagerOptions& options);
  Status open(std::optional<gid_t> group);
  void accept();
  void await_request(const std::shared_ptr<Run>& run);
  void on_readable(const std::shared_ptr<Run>& run);
  void on_request(const std::shared_ptr<Run>& run, std::string_view line);
  Status begin(const std::shared_ptr<Run>& run, const BeginRun& begin);
  Status check_local(const Run& run, uint64_t local_bytes) const;
  void answer(const std::shared_ptr<Run>& run, std::string line);
  // The run's connection is closed, or its program has ended.
  void on_over(const std::shared_ptr<Run>& run);
  void remove(const std::shared_ptr<Run>& run);
  PagerStatus status() const;

  boost::asio::io_context& control_;
  const std::string path_;
  pager::Engine& engine_;
  const pager::PagerOptions options_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::list<std::shared_ptr<Run>> runs_;  // those that have begun
  size_t answers_ = 0;                    // that are being sent
};

}  // namespace farpage::serve
