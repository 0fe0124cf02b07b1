// WatchRota: which of the fault workers watch for faults, and which rest.
//
// A fault wakes every worker that polls the descriptor. One of them reads it; the others find
// nothing and go back to sleep inside poll(), without a word to us. Each such waking is on the
// faulting thread's way (under emulation 20 us of 200) and takes a CPU from whoever works there. So
// a worker that has good reason to think that the one faulting thread runs on its own CPU sends the
// others to rest, and calls them back as soon as it has not: it then would have to be woken across
// CPUs, the dearest thing on the path.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/doorbell.h"

namespace farpage::pager {

// Threads: watch() and won() of a worker by its own thread, the others by any.
class WatchRota {
 public:
  static constexpr uint32_t kWinsToDismiss = 8;
  static constexpr uint32_t kDoubtsToRecall = 2;
  static constexpr Milliseconds kFirstRest{2}, kLongestRest{256};  // doubled from rest to rest

  // What a worker that has read faults knows of them.
  struct Win {
    uint32_t thread = 0;  // the last of the faulting threads
    // It found them without having watched. That is what happens on one CPU (a thread that is woken
    // runs at once, and has faulted again when the worker goes on), or where idle CPUs poll; in
    // both nobody else is needed.
    bool at_once = false;
  };

  static Result<std::unique_ptr<WatchRota>> create(uint32_t workers,
                                                   Milliseconds first_rest = kFirstRest);

  // Blocks until `events` is readable (true), or the worker was dismissed and has rested (or need
  // not any more), or stop() (false: there may be events all the same). Who has rested looks for
  // events then, and rests again while the one that dismissed it goes on and has no doubts:
  // watching, it would be woken for the next fault and dismissed anew.
  bool watch(uint32_t worker, int events);
  void won(uint32_t worker, Win win);
  // No other one has read a fault since.
  bool won_last(uint32_t worker) const {
    return last_winner_.load(std::memory_order_relaxed) == worker;
  }
  // Among more than one worker.
  bool shared() const { return bells_.size() > 1; }
  // From now on watch() returns at once.
  void stop();

 private:
  enum class Duty : uint8_t { kWork, kWatch, kRest };
  struct alignas(64) Worker {
    std::atomic<Duty> duty{Duty::kWork};
    uint32_t thread = 0;     // of the last win
    uint32_t wins = 0;       // in a row, at once, of that thread
    uint32_t doubts = 0;     // in a row
    Milliseconds rest{};     // the next one
    bool rested = false;     // and was not called back
    uint32_t seen_wins = 0;  // of the sole winner, at the last rest
  };
  WatchRota(std::vector<Doorbell> bells, Milliseconds first_rest);

  void rest(Worker& me, const Doorbell& bell);
  void ring_all_on(Duty duty, uint32_t but);

  const Milliseconds first_rest_;
  std::vector<Doorbell> bells_;  // of each worker
  std::vector<Worker> workers_;
  std::atomic<uint32_t> last_winner_{0};
  // In a row, of the last winner, from when it had good reason to think that no other is needed
  // until it had doubts; or 0.
  std::atomic<uint32_t> sole_wins_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace farpage::pager
