// AsyncEvents: the thread that reads a device's asynchronous events (a port went down, a queue pair
// failed), logs them, and calls its owner at regular intervals.
#pragma once

#include <infiniband/verbs.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "rdma/verbs/resources.h"

namespace farpage::rdma::verbs {

// Called on the thread of AsyncEvents.
struct AsyncEventHandlers {
  // A queue pair reported an error; it is in state ERR. May destroy it. May be empty.
  std::function<void(uint32_t qpn, ibv_event_type type)> on_queue_pair_error;
  // About every `interval`. May be empty.
  std::function<void()> on_interval;
  Nanoseconds interval = std::chrono::hours(1);
};

// Threads: owns one; create and destroy from any. The destructor stops and joins the thread: no
// handler runs afterwards.
class AsyncEvents {
 public:
  static Result<std::unique_ptr<AsyncEvents>> start(std::shared_ptr<const Device> device,
                                                    AsyncEventHandlers handlers);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

 private:
  AsyncEvents(std::shared_ptr<const Device> device, AsyncEventHandlers handlers, Fd stop)
      : device_(std::move(device)), handlers_(std::move(handlers)), stop_(std::move(stop)) {}
  void run();
  void drain();

  const std::shared_ptr<const Device> device_;
  const AsyncEventHandlers handlers_;
  const Fd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace farpage::rdma::verbs
