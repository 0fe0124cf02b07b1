// WriteWindow: how much the evictor has on the wire to one node at once.
//
// A network that loses or reorders packets may break a long exchange each time it is tried: a card
// that goes back to the first packet it misses never gets through many of them, and its retries run
// out. What cannot pass together passes in smaller parts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace farpage::pager {

// Threads: one. All numbers are pages. All zeros is a window that is open wide (NodeTable).
class WriteWindow {
 public:
  static constexpr uint32_t kLimit = 256;

  // The most that may be in flight, so also the longest WRITE. At least 1.
  uint32_t pages() const { return kLimit - withheld_; }
  bool admits(uint32_t count) const { return in_flight_ + count <= pages(); }

  void posted(uint32_t count) { in_flight_ += count; }
  // The channel did not take them after all: they have neither passed nor failed.
  void not_posted(uint32_t count) { in_flight_ -= count; }
  void acknowledged(uint32_t count) {
    in_flight_ -= count;
    passed_ += count;
    if (passed_ < kLimit) return;
    passed_ = 0;
    withheld_ = kLimit - std::min(pages() * 2, kLimit);
  }
  // Half of what was too much, until kLimit pages have passed.
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

}  // namespace farpage::pager
