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
  kSpinning,  // they poll continuously, and yield in between
};
struct PingPongOptions {
  uint64_t iterations = 10'000;
  bool pin = false;  // the requesting thread to the first CPU, the answering one to the last
  PingPongWait wait = PingPongWait::kBlocking;
};

// From before the request is sent to after the page is received, each with its own number in it.
Result<Histogram> measure_tcp_ping_pong(const PingPongOptions& options);

}  // namespace farpage::bench
