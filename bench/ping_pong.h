// The floor of a page over TCP: a request of 16 bytes and a reply of 4 KiB on the loopback device,
// with plain sockets and two threads, and without any code of farpage.
#pragma once

#include <cstdint>

#include "base/histogram.h"
#include "base/result.h"

namespace farpage::bench {

// How each thread waits for the other one.
enum class PingPongWait : uint8_t {
  kBlocking,  // in recv(2)
  kSpinning,  // polls continuously, and yields between polls
};
struct PingPongOptions {
  uint64_t iterations = 10'000;
  bool pin = false;  // the requesting thread to the first CPU, the replying one to the last
  PingPongWait wait = PingPongWait::kBlocking;
};

// Time from before the send of the request until the page is received. Each round trip carries
// its own number.
Result<Histogram> measure_tcp_ping_pong(const PingPongOptions& options);

}  // namespace farpage::bench
