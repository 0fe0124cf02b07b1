// WirePace: whether the wire needs longer for bytes than compressing them does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace farpage::rdma::tcp {

// Of one connection, since its start (tcp_info).
struct WireUse {
  uint64_t acknowledged_bytes = 0;
  // With bytes that were not acknowledged, and room at the peer. In ticks of the kernel (1 to 10
  // ms).
  Nanoseconds busy{0};
  Nanoseconds round_trip{0};  // the shortest
};

// A page of 4 KiB is compressed in 2 to 10 us, which is 0.5 to 2.5 ns a byte
// (docs/experiments/compressed-tier.md). A wire of 1 Gbit/s needs 8 ns a byte.
//
// Threads: one.
class WirePace {
 public:
  static constexpr int64_t kSlowNanosecondsPerByte = 4;
  // What is judged at once: so much that ticks do not count.
  static constexpr uint64_t kBytes = uint64_t{4} << 20;
  static constexpr Nanoseconds kBusy = Milliseconds(20);
  // The wire is slow after so many judgements in a row: one may be of a peer that did not run.
  static constexpr uint32_t kInARow = 3;
  // What is posted between two looks, at least: each is a system call.
  static constexpr size_t kLookBytes = size_t{256} << 10;

  // Bytes are posted. `idle`: all others have been acknowledged, so that the first of these will
  // be after a round trip, which is no work of the wire.
  void posted(size_t bytes, bool idle) {
    posted_bytes_ += bytes;
    round_trips_ += idle ? 1 : 0;
  }
  bool wants_look() const { return posted_bytes_ >= kLookBytes; }
  void look(const WireUse& use);
  bool is_slow() const { return slow_in_a_row_ >= kInARow; }

 private:
  uint32_t slow_in_a_row_ = 0;
  size_t posted_bytes_ = 0;  // since the last look
  int64_t round_trips_ = 0;  // since the last judgement
  WireUse judged_;           // at the last judgement
};

}  // namespace farpage::rdma::tcp
