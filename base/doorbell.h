// Doorbell: one thread waits, others ring. An eventfd, so it can be polled together with other
// descriptors.
#pragma once

#include "base/clock.h"
#include "base/fd.h"

namespace farpage {

// Threads: any.
class Doorbell {
 public:
  static Result<Doorbell> create();

  void ring() const;
  // Waits for a ring, or the timeout (negative: forever), and clears all rings so far.
  // True: there was a ring.
  bool wait(Milliseconds timeout) const;
  int fd() const { return fd_.get(); }

 private:
  explicit Doorbell(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace farpage
