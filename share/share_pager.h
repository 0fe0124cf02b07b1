// SharePager: accepts processes that hand shared memory over, on one socket, until the last of them
// has ended.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "share/arrival.h"
#include "share/shared_group.h"

namespace farpage::share {

struct ShareOptions {
  std::string socket;        // path
  uint64_t local_bytes = 0;  // of each memory
  size_t processes = 1;      // that each memory waits for, before any of them is served
  bool stay = false;         // after the last process has ended
  std::function<void(const GroupReport&)> on_end = {};
};

// Threads: one. A hand-over waits for those before it: the coordinator may be asked. Faults do not.
class SharePager {
 public:
  static constexpr size_t kMaxArrivals = 64;

  // Listens. With the state of a dead engine it goes on with that one's socket and processes; those
  // that it cannot serve are killed, since they would read zeros. The engine outlives it.
  static Result<std::unique_ptr<SharePager>> create(ShareOptions options, pager::Engine& engine,
                                                    const serve::ServedState& state);
  // Removes the socket.
  ~SharePager();
  SharePager(const SharePager&) = delete;
  SharePager& operator=(const SharePager&) = delete;

  // Until all processes have ended, or a signal can be read from `signals` (signalfd): then all
  // pages are brought back, and the processes go on without a pager. Where that fails they stay,
  // and the next signal kills them: kUnavailable.
  Status run(int signals);

 private:
  using Group = std::unique_ptr<SharedGroup>;

  SharePager(ShareOptions options, pager::Engine& engine, const serve::ServedState& state);

  Status listen();
  Status take_over();
  void accept_all();
  void go_on(Arrival& arrival);
  // The group that it has joined. After a failure the socket is the arrival's.
  Result<SharedGroup*> take_in(Arrival& arrival);
  void welcome(SharedGroup& group, pid_t newcomer);
  void refuse(SharedGroup& group, const Error& why);
  void look_after();
  void end(SharedGroup& group);
  void stop();
  void kill_all();

  const ShareOptions options_;
  const serve::ServedState& state_;
  const SharedGroup::Host host_;
  Fd listener_;
  std::list<Arrival> arrivals_;
  std::list<Group> groups_;
  bool served_any_ = false;
  bool stopping_ = false;
};

// Kills the processes of these pidfds, and waits until they have ended.
void kill_processes(const std::vector<int>& pidfds);

}  // namespace farpage::share
