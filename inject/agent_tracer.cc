#include "inject/agent_tracer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>

namespace farpage::inject {

Result<std::unique_ptr<AgentTracer>> AgentTracer::trace(pid_t agent) {
  std::unique_ptr<AgentTracer> tracer(new AgentTracer(agent));
  tracer->thread_ = std::thread([self = tracer.get()] { self->run(); });
  ::pthread_setname_np(tracer->thread_.native_handle(), "fp-seccomp");
  if (const int sys_errno = tracer->wait_for_begin(); sys_errno != 0)
    return fail_errno("suspending the seccomp filter of the agent: run as root", sys_errno);
  return tracer;
}

AgentTracer::~AgentTracer() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AgentTracer::run() {
  const long seized = ::ptrace(PTRACE_SEIZE, agent_, 0, PTRACE_O_SUSPEND_SECCOMP);
  {
    const MutexLock lock(mutex_);
    began_ = true;
    begin_errno_ = seized == 0 ? 0 : errno;
  }
  changed_.notify_all();
  if (seized != 0) return;
  while (answer_stop()) {
    if (!wait_for_end()) continue;
    // One that has ended is in the program until we have taken its status. The end of this thread
    // lets go of one that lives, but is complete only some time after the join.
    (void)answer_stop();
    return;
  }
}

// False: the agent has ended.
bool AgentTracer::answer_stop() {
  int status = 0;
  const pid_t waited = ::waitpid(agent_, &status, __WALL | WNOHANG);
  if (waited == 0 || (waited < 0 && errno == EINTR)) return true;
  if (waited != agent_ || !WIFSTOPPED(status)) return false;
  const int signal = WSTOPSIG(status);
  if (status >> 16 != PTRACE_EVENT_STOP) return ::ptrace(PTRACE_CONT, agent_, 0, signal) == 0;
  // The program is stopped until SIGCONT, or goes on.
  const bool is_group_stop = signal != SIGTRAP;
  return ::ptrace(is_group_stop ? PTRACE_LISTEN : PTRACE_CONT, agent_, 0, 0) == 0;
}

bool AgentTracer::wait_for_end() {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(kIntervalMs),
                           [this]() FARPAGE_REQUIRES(mutex_) { return ends_; });
}

int AgentTracer::wait_for_begin() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return began_; });
  return begin_errno_;
}

}  // namespace farpage::inject
