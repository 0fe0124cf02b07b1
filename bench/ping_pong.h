// The floor of a page that comes over TCP: 16 bytes there and 4 KiB back on the loopback device, by
// plain sockets, two threads and nothing of this project.
#pragma once

#include <cstdint>

#include "base/histogram.h"
#include "base/result.h"

namespace farpage::bench {

// How both threads wait for the other one.
enum class PingPongWait : uint8_t {
  kBlocking,  // in recv(2)
  kSpinning,  // they look again and again, and yield between
};
struct PingPongOptions {
  uint64_t iterations = 10'000;
  bool pin = false;  // the asking thread to the first CPU, the answering one to the last
  PingPongWait wait = PingPongWait::kBlocking;
};

// From before the request is sent to after the page is received, each with its own number in it.
Result<Histogram> measure_tcp_ping_pong(const PingPongOptions& options);

}  // namespace farpage::bench
