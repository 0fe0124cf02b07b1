// Arrival: a process that has connected and has not sent all of its message yet.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace farpage::share {

// Threads: one.
class Arrival {
 public:
  static constexpr Milliseconds kPatience{10'000};

  // `socket` never blocks.
  Arrival(Fd socket, const ucred& peer, Instant now)
      : socket_(std::move(socket)), peer_(peer), until_(now + kPatience) {}

  // Takes what has arrived; never blocks. True: a whole line is there. kInvalid, kExhausted: what
  // came is no message; kUnavailable: the process has closed the socket; kTimedOut: it is too late.
  Result<bool> read(Instant now);

  int fd() const { return socket_.get(); }
  const ucred& peer() const { return peer_; }
  std::string_view line() const { return std::string_view(text_).substr(0, text_.find('\n')); }
  std::vector<Fd> take_descriptors() { return std::move(descriptors_); }
  Fd take_socket() { return std::move(socket_); }

 private:
  Fd socket_;
  ucred peer_;
  Instant until_;
  std::string text_;
  std::vector<Fd> descriptors_;
};

}  // namespace farpage::share
