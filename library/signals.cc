#include "library/signals.h"

#include <initializer_list>

namespace farpage::library {

sigset_t asynchronous_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int caused : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&signals, caused);
  return signals;
}

SignalsBlocked::SignalsBlocked() {
  const sigset_t signals = asynchronous_signals();
  (void)::pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace farpage::library
