// Which signals may reach which threads of a program that has regions.
#pragma once

#include <signal.h>

namespace farpage::library {

// All but those that an instruction causes in the thread that executes it.
sigset_t asynchronous_signals();

// Blocks them in the calling thread for the life of the object, and permanently in the threads that
// it creates meanwhile, so that handlers of the program run on threads of the program. On one of
// our threads, a handler could touch a region and wait for that same thread.
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
