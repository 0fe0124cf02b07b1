// Which signals may reach which threads of a program that has regions.
#pragma once

#include <signal.h>

namespace farpage::library {

// All but those that an instruction causes in the thread that executes it.
sigset_t asynchronous_signals();

// Keeps them from the calling thread, and for good from the threads that it makes meanwhile: a
// handler of the program shall run on threads of the program. On one of ours it could touch a
// region and wait for that very thread.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace farpage::library
