// EventWatchers: the calls of /v1/events that wait for an event. Each holds a connection and a
// record here, and all of them share one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/cluster.h"
#include "http/server.h"

namespace farpage::coordinator {

// Threads: any. Made by std::make_shared(): connections that end refer to it.
class EventWatchers : public std::enable_shared_from_this<EventWatchers> {
 public:
  // At most `limit` wait at the same time.
  EventWatchers(std::shared_ptr<Cluster> cluster, uint32_t limit);
  ~EventWatchers();
  EventWatchers(const EventWatchers&) = delete;
  EventWatchers& operator=(const EventWatchers&) = delete;

  // Answers with the events after `since`: now, if there are some, or as soon as there are, or with
  // none after `timeout` of the steady clock. A client that goes away is forgotten. False: too many
  // wait already; nothing is answered.
  bool add(uint64_t since, Milliseconds timeout, std::shared_ptr<http::PendingReply> request);
  // Answers all, and from now on every further one at once. Ends the thread.
  void stop();
  uint32_t waiting() const;
  const Cluster& cluster() const { return *cluster_; }

  // An event wakes all watchers, and most of them ask again at once: other requests get a turn
  // between groups of this size.
  static constexpr size_t kAnsweredAtOnce = 8;
  static constexpr Milliseconds kBetweenAnswers{1};

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Watcher {
    uint64_t since = 0;
    Time deadline;
    std::shared_ptr<http::PendingReply> request;
  };

  void loop();
  // Until there is somebody to answer, or may be.
  void await_due(MutexLock& lock) FARPAGE_REQUIRES(mutex_);
  // Removes those to answer now: all after an event, else those whose time is over.
  std::vector<Watcher> take_due() FARPAGE_REQUIRES(mutex_);
  void answer(const std::vector<Watcher>& watchers);
  uint64_t latest() const;
  void note_event(uint64_t latest);
  void forget(uint64_t number);

  const std::shared_ptr<Cluster> cluster_;
  const uint32_t limit_;
  mutable Mutex mutex_;
  ConditionVariable changed_;                                        // what loop() waits for
  std::map<uint64_t, Watcher> watchers_ FARPAGE_GUARDED_BY(mutex_);  // by number
  std::set<std::pair<Time, uint64_t>> deadlines_ FARPAGE_GUARDED_BY(mutex_);
  uint64_t next_number_ FARPAGE_GUARDED_BY(mutex_) = 0;
  uint64_t latest_ FARPAGE_GUARDED_BY(mutex_);  // event
  bool has_news_ FARPAGE_GUARDED_BY(mutex_) = false;
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace farpage::coordinator
