// WakePolicy: which of the fault workers watch for faults, and which rest.
//
// A fault wakes every worker that polls the descriptor. One of them reads it; the others find
// nothing and go back to sleep inside poll(), which does not return. Each such wake-up delays the
// faulting thread (under emulation 20 us of 200) and takes CPU time from other threads. So a worker
// with evidence that the only faulting thread runs on its own CPU tells the others to rest. It
// calls them back as soon as the evidence is gone: it would then have to be woken across CPUs,
// which is the most expensive part of the path.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/doorbell.h"

namespace farpage::pager {

// Threads: watch() and won() of a worker by its own thread, the others by any.
class WakePolicy {
 public:
  static constexpr uint32_t kWinsToStop = 8;
  static constexpr uint32_t kDoubtsToRecall = 2;
  static constexpr Milliseconds kFirstRest{2}, kLongestRest{256};  // doubled from rest to rest

  // What a worker knows about the faults that it has read.
  struct Win {
    uint32_t thread = 0;  // the last of the faulting threads
    // No other worker is needed: it found them without watching, which happens on one CPU (the
    // woken thread runs at once, and has faulted again when the worker continues) or where idle
    // CPUs poll; or it follows the thread from CPU to CPU (thread_follower.h).
    bool alone = false;
  };

  static Result<std::unique_ptr<WakePolicy>> create(uint32_t workers,
                                                    Milliseconds first_rest = kFirstRest);

  // Blocks until `events` is readable (true), or until the worker was sent to rest and its rest is
  // over, or stop() (false: there may be events nevertheless). After a rest the worker looks for
  // events, and rests again while the worker that sent it continues without doubts: if it
  // watched, it would be woken for the next fault and sent to rest again.
  bool watch(uint32_t worker, int events);
  // Blocks until wake() or the timeout. One of the workers that wait here watches `events` for all
  // of them, and returns when that is readable: as long as all wait, none of them needs more than
  // one to read what comes. events < 0: this worker has no place for them.
  void await_room(uint32_t worker, int events, Nanoseconds timeout);
  // Ends await_room() of these workers (bits).
  void wake(uint64_t workers);
  void won(uint32_t worker, Win win);
  // No other worker has read a fault since.
  bool won_last(uint32_t worker) const {
    return last_winner_.load(std::memory_order_relaxed) == worker;
  }
  // There is more than one worker.
  bool shared() const { return bells_.size() > 1; }
  // The descriptor to watch has changed: every watch() under way returns, and no rest goes on.
  void look_again();
  // From now on watch() returns at once.
  void stop();

 private:
  enum class WakeRole : uint8_t { kWork, kWatch, kRest };
  struct alignas(64) Worker {
    std::atomic<WakeRole> role{WakeRole::kWork};
    uint32_t thread = 0;     // of the last win
    uint32_t wins = 0;       // in a row, alone, of that thread
    uint32_t doubts = 0;     // in a row
    Milliseconds rest{};     // the next one
    bool rested = false;     // and was not called back
    uint32_t seen_wins = 0;  // of the sole winner, at the last rest
  };
  WakePolicy(std::vector<Doorbell> bells, Milliseconds first_rest);

  void rest(Worker& me, const Doorbell& bell);
  void ring_all_on(WakeRole role, uint32_t but);

  const Milliseconds first_rest_;
  std::vector<Doorbell> bells_;  // of each worker
  std::vector<Worker> workers_;
  std::atomic<uint32_t> last_winner_{0};
  // Consecutive faults of the last winner while it had evidence that no other worker is needed;
  // otherwise 0.
  std::atomic<uint32_t> sole_wins_{0};
  std::atomic<bool> room_watched_{false};  // a worker in await_room() watches
  std::atomic<bool> stopped_{false};
};

}  // namespace farpage::pager
