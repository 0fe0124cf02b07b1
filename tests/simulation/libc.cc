// The calls of libc by which threads start, wait, sleep and read the clock. In a fiber of the
// simulation they are the scheduler's; elsewhere those of libc. The linker prefers these
// definitions to those of the shared library, also for calls from libstdc++.
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <ctime>
#include <optional>

#include "scheduler.h"

namespace {

using farpage::Instant;
using farpage::Nanoseconds;
using farpage::Seconds;
using farpage::simulation::Descriptors;
using farpage::simulation::Scheduler;

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

Nanoseconds duration_of(const timespec& time) {
  return Seconds(time.tv_sec) + Nanoseconds(time.tv_nsec);
}

// An absolute time may be of either clock: both are the simulated one.
Nanoseconds until(const Scheduler& scheduler, const timespec& time) {
  return std::max(duration_of(time) - scheduler.now(), Nanoseconds(0));
}

// Descriptors of the kernel are not used by the simulated threads.
int poll_in_fiber(Scheduler& scheduler, pollfd* polls, nfds_t count, Nanoseconds time) {
  scheduler.step();
  return scheduler.wait_for_descriptors({polls, count}, time);
}

// The scheduler, if the descriptor is one of its own.
Scheduler* owner_of(int descriptor) {
  return Descriptors::owns(descriptor) ? Scheduler::running() : nullptr;
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  static auto* const call = real<decltype(pthread_create)>("pthread_create");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(thread, attributes, body, argument);
  *thread = scheduler->spawn_thread([body, argument] { (void)body(argument); }, "thread");
  return 0;
}

pthread_t pthread_self() noexcept {
  static auto* const call = real<decltype(pthread_self)>("pthread_self");
  Scheduler* scheduler = Scheduler::running();
  return scheduler == nullptr ? call() : scheduler->self();
}

int pthread_join(pthread_t thread, void** result) {
  static auto* const call = real<decltype(pthread_join)>("pthread_join");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(thread, result);
  scheduler->join(thread);
  return 0;
}

int pthread_setname_np(pthread_t thread, const char* name) noexcept {
  static auto* const call = real<decltype(pthread_setname_np)>("pthread_setname_np");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(thread, name);
  scheduler->set_name(thread, name);
  return 0;
}

int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t* cpus) noexcept {
  static auto* const call = real<decltype(pthread_setaffinity_np)>("pthread_setaffinity_np");
  return Scheduler::running() == nullptr ? call(thread, bytes, cpus) : 0;
}

int setpriority(__priority_which_t which, id_t who, int value) noexcept {
  static auto* const call = real<decltype(setpriority)>("setpriority");
  return Scheduler::running() == nullptr ? call(which, who, value) : 0;
}

pid_t gettid() noexcept {
  static auto* const call = real<decltype(gettid)>("gettid");
  Scheduler* scheduler = Scheduler::running();
  return scheduler == nullptr ? call() : static_cast<pid_t>(scheduler->self() + 1);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const call = real<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  static auto* const try_call = real<decltype(pthread_mutex_trylock)>("pthread_mutex_trylock");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(mutex);
  scheduler->step();
  while (try_call(mutex) != 0) (void)scheduler->wait(mutex, Nanoseconds(-1));
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const call = real<decltype(pthread_mutex_unlock)>("pthread_mutex_unlock");
  const int result = call(mutex);
  Scheduler* scheduler = Scheduler::running();
  if (scheduler != nullptr) scheduler->notify(mutex);
  return result;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* time) {
  static auto* const call = real<decltype(pthread_cond_clockwait)>("pthread_cond_clockwait");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(condition, mutex, clock, time);
  (void)pthread_mutex_unlock(mutex);
  const bool notified = scheduler->wait(condition, until(*scheduler, *time));
  (void)pthread_mutex_lock(mutex);
  return notified ? 0 : ETIMEDOUT;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* time) {
  static auto* const call = real<decltype(pthread_cond_timedwait)>("pthread_cond_timedwait");
  if (Scheduler::running() == nullptr) return call(condition, mutex, time);
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, time);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static auto* const call = real<decltype(pthread_cond_wait)>("pthread_cond_wait");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(condition, mutex);
  (void)pthread_mutex_unlock(mutex);
  (void)scheduler->wait(condition, Nanoseconds(-1));
  (void)pthread_mutex_lock(mutex);
  return 0;
}

// Waking more threads than one is allowed: they look at their condition again.
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static auto* const call = real<decltype(pthread_cond_signal)>("pthread_cond_signal");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(condition);
  scheduler->notify(condition);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static auto* const call = real<decltype(pthread_cond_broadcast)>("pthread_cond_broadcast");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(condition);
  scheduler->notify(condition);
  return 0;
}

int sched_yield() noexcept {
  static auto* const call = real<decltype(sched_yield)>("sched_yield");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call();
  scheduler->sleep(Nanoseconds(scheduler->choose(10'000)));  // the others get the CPU
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static auto* const call = real<decltype(clock_nanosleep)>("clock_nanosleep");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(clock, flags, time, left);
  scheduler->sleep((flags & TIMER_ABSTIME) != 0 ? until(*scheduler, *time) : duration_of(*time));
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  static auto* const call = real<decltype(nanosleep)>("nanosleep");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(time, left);
  scheduler->sleep(duration_of(*time));
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const call = real<decltype(clock_gettime)>("clock_gettime");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(clock, time);
  const auto seconds = std::chrono::duration_cast<Seconds>(scheduler->now());
  *time = {.tv_sec = seconds.count(), .tv_nsec = (scheduler->now() - seconds).count()};
  scheduler->step();
  return 0;
}

int poll(pollfd* polls, nfds_t count, int timeout_ms) {
  static auto* const call = real<int(pollfd*, nfds_t, int)>("poll");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(polls, count, timeout_ms);
  return poll_in_fiber(*scheduler, polls, count, farpage::Milliseconds(timeout_ms));
}

int ppoll(pollfd* polls, nfds_t count, const timespec* time, const sigset_t* mask) {
  static auto* const call = real<decltype(ppoll)>("ppoll");
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr) return call(polls, count, time, mask);
  return poll_in_fiber(*scheduler, polls, count,
                       time == nullptr ? Nanoseconds(-1) : duration_of(*time));
}

int eventfd(unsigned count, int flags) noexcept {
  static auto* const call = real<decltype(eventfd)>("eventfd");
  Scheduler* scheduler = Scheduler::running();
  return scheduler == nullptr ? call(count, flags) : scheduler->descriptors().make_event(count);
}

ssize_t read(int descriptor, void* bytes, size_t size) {
  static auto* const call = real<decltype(read)>("read");
  Scheduler* scheduler = owner_of(descriptor);
  if (scheduler == nullptr) return call(descriptor, bytes, size);
  scheduler->step();
  const std::optional<uint64_t> count = scheduler->descriptors().read(descriptor);
  if (!count) {
    errno = EAGAIN;
    return -1;
  }
  std::memcpy(bytes, &*count, sizeof *count);
  return sizeof *count;
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  static auto* const call = real<decltype(write)>("write");
  Scheduler* scheduler = owner_of(descriptor);
  if (scheduler == nullptr) return call(descriptor, bytes, size);
  scheduler->step();
  uint64_t count = 0;
  std::memcpy(&count, bytes, sizeof count);
  scheduler->descriptors().write(descriptor, count);
  return sizeof count;
}

int close(int descriptor) {
  static auto* const call = real<decltype(close)>("close");
  Scheduler* scheduler = owner_of(descriptor);
  if (scheduler == nullptr) return call(descriptor);
  scheduler->descriptors().close(descriptor);
  return 0;
}

int epoll_create1(int flags) noexcept {
  static auto* const call = real<decltype(epoll_create1)>("epoll_create1");
  Scheduler* scheduler = Scheduler::running();
  return scheduler == nullptr ? call(flags) : scheduler->descriptors().make_set();
}

int epoll_ctl(int set, int operation, int member, epoll_event* event) noexcept {
  static auto* const call = real<decltype(epoll_ctl)>("epoll_ctl");
  Scheduler* scheduler = owner_of(set);
  if (scheduler == nullptr) return call(set, operation, member, event);
  scheduler->step();
  scheduler->descriptors().control(set, operation, member, event);
  return 0;
}

int epoll_wait(int set, epoll_event* events, int most, int timeout_ms) {
  static auto* const call = real<decltype(epoll_wait)>("epoll_wait");
  Scheduler* scheduler = owner_of(set);
  if (scheduler == nullptr) return call(set, events, most, timeout_ms);
  scheduler->step();
  return scheduler->descriptors().ready_members(set, events, most);  // the product never waits here
}

long syscall(long number, ...) noexcept {
  static auto* const call = real<decltype(syscall)>("syscall");
  std::array<long, 6> arguments{};
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  Scheduler* scheduler = Scheduler::running();
  if (scheduler == nullptr || number != SYS_futex)
    return call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                arguments[5]);
  auto* const word = reinterpret_cast<uint32_t*>(arguments[0]);
  const long operation = arguments[1] & FUTEX_CMD_MASK;
  if (operation == FUTEX_WAKE) {
    scheduler->notify(word);
    return 0;
  }
  scheduler->step();
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != static_cast<uint32_t>(arguments[2])) {
    errno = EAGAIN;
    return -1;
  }
  const auto* time = reinterpret_cast<const timespec*>(arguments[3]);
  if (scheduler->wait(word, time == nullptr ? Nanoseconds(-1) : duration_of(*time))) return 0;
  errno = ETIMEDOUT;
  return -1;
}

}  // extern "C"
