// Which signals may reach which threads of a program that has regions.
#pragma once

#include <signal.h>

namespace farpage::library {

// All signals except those that an instruction causes in the executing thread.
sigset_t asynchronous_signals();

// Blocks them in the calling thread for the lifetime of the object, and permanently in threads
// created meanwhile, so that handlers of the program run on threads of the program. On one of our
// threads, a handler could touch a region and wait for that same thread.
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
