// PeerState: what one pager keeps for each memory node that it uses.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace farpage::pager {

// WriteLimit: the limit of the evictor's pages in flight to one node.
//
// A network that loses or reorders packets may break every attempt of a long WRITE: a card that
// restarts at the first missing packet (go-back-N) never completes many packets, and its retries
// run out. Smaller parts get through.
//
// Threads: one. All numbers are pages. All zeros is no limit but kLimit (NodeTable).
class WriteLimit {
 public:
  static constexpr uint32_t kLimit = 256;

  // The most that may be in flight, so also the longest WRITE. At least 1.
  uint32_t pages() const { return kLimit - withheld_; }
  bool admits(uint32_t count) const { return in_flight_ + count <= pages(); }

  void posted(uint32_t count) { in_flight_ += count; }
  // The channel did not accept them: they have neither succeeded nor failed.
  void not_posted(uint32_t count) { in_flight_ -= count; }
  void acknowledged(uint32_t count) {
    in_flight_ -= count;
    passed_ += count;
    if (passed_ < kLimit) return;
    passed_ = 0;
    withheld_ = kLimit - std::min(pages() * 2, kLimit);
  }
  // Halves the limit, until kLimit pages have been acknowledged.
  void failed(uint32_t count) {
    withheld_ = kLimit - std::max(std::min(pages(), in_flight_) / 2, uint32_t{1});
    in_flight_ -= count;
    passed_ = 0;
  }

 private:
  uint32_t withheld_ = 0;  // of kLimit, after failures
  uint32_t in_flight_ = 0;
  uint32_t passed_ = 0;  // acknowledged since the last failure or doubling
};

// All zeros: nothing has happened yet (NodeTable).
struct PeerState {
  // A wait for a node to acknowledge something. It may span several batches.
  struct Wait {
    Instant since{0};  // the first request, or the last acknowledgement
    Instant until{0};  // the latest time at which a batch wanted it; 0: nothing is outstanding
  };

  // Its channels were asked for. Any thread.
  std::atomic<bool> requested{false};
  // The time since which no port could connect to it; 0: the last attempt succeeded. Written by the
  // connector.
  std::atomic<int64_t> unreachable_since_ns{0};
  bool is_unreachable() const { return unreachable_since_ns.load(std::memory_order_relaxed) != 0; }
  // 0: it is reachable.
  Nanoseconds unreachable_for() const {
    const int64_t since = unreachable_since_ns.load(std::memory_order_relaxed);
    return since == 0 ? Nanoseconds(0) : SteadyClock::read() - Nanoseconds(since);
  }
  // Of the thread that evicts.
  Wait wait;
  WriteLimit write_limit;
};

}  // namespace farpage::pager
