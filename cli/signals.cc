#include "cli/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>

#include "base/check.h"

namespace farpage::cli {

Result<Fd> block_signals(std::initializer_list<int> numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  const int problem = ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  FARPAGE_CHECK(problem == 0, "pthread_sigmask returned %d", problem);
  return Fd::from_call(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
}

Result<ShutdownSignals> ShutdownSignals::create() {
  ShutdownSignals made;
  ::sigemptyset(&made.signals_);
  ::sigaddset(&made.signals_, SIGINT);
  ::sigaddset(&made.signals_, SIGTERM);
  const int problem = ::pthread_sigmask(SIG_BLOCK, &made.signals_, &made.before_);
  FARPAGE_CHECK(problem == 0, "pthread_sigmask returned %d", problem);
  FARPAGE_TRY(arrived, Fd::from_call(::signalfd(-1, &made.signals_, SFD_CLOEXEC | SFD_NONBLOCK),
                                     "signalfd"));
  FARPAGE_TRY(interrupts, Fd::from_call(::eventfd(0, EFD_CLOEXEC), "eventfd"));
  made.arrived_ = std::move(arrived);
  made.interrupts_ = std::move(interrupts);
  return made;
}

int ShutdownSignals::wait() {
  std::array<pollfd, 2> sources{{{arrived_.get(), POLLIN, 0}, {interrupts_.get(), POLLIN, 0}}};
  while (::poll(sources.data(), sources.size(), -1) <= 0) {
  }
  signalfd_siginfo signal{};
  if (::read(arrived_.get(), &signal, sizeof signal) != sizeof signal) return 0;
  ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  return static_cast<int>(signal.ssi_signo);
}

void ShutdownSignals::interrupt() const {
  const eventfd_t one = 1;
  const int problem = ::eventfd_write(interrupts_.get(), one);
  FARPAGE_CHECK(problem == 0, "eventfd_write returned %d", problem);
}

bool ShutdownSignals::is_pending() const {
  pollfd source{arrived_.get(), POLLIN, 0};
  return ::poll(&source, 1, 0) == 1;
}

void ShutdownSignals::unblock_in_child() const {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace farpage::cli
