// AgentTracer: keeps the seccomp filter of an agent suspended, by tracing it (ptrace(2),
// PTRACE_O_SUSPEND_SECCOMP).
#pragma once

#include <sys/types.h>

#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"

namespace farpage::inject {

// Threads: one of its own, which is the agent's tracer. A stop of the agent (the program was
// stopped, or goes on) is answered within kInterval.
class AgentTracer {
 public:
  static constexpr int kIntervalMs = 50;

  // kDenied: suspending needs CAP_SYS_ADMIN.
  static Result<std::unique_ptr<AgentTracer>> trace(pid_t agent);
  AgentTracer(const AgentTracer&) = delete;
  AgentTracer& operator=(const AgentTracer&) = delete;
  // The filter of an agent that lives still holds again.
  ~AgentTracer();

 private:
  explicit AgentTracer(pid_t agent) : agent_(agent) {}
  void run();
  bool answer_stop();
  bool wait_for_end();
  int wait_for_begin();  // an errno, or 0

  const pid_t agent_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool began_ FARPAGE_GUARDED_BY(mutex_) = false;
  int begin_errno_ FARPAGE_GUARDED_BY(mutex_) = 0;
  bool ends_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace farpage::inject
