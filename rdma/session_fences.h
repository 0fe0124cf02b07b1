// SessionFences: only the newest channel of a session may apply operations.
//
// A borrower abandons a channel whose operations did not complete, reconnects, and writes the same
// pages again with newer bytes. The old bytes may still be in flight: in a socket's buffer, or in a
// list of delayed operations. Applied later, they would silently overwrite the newer ones. So the
// side that applies operations does it under a Pass, and a new channel revokes the previous
// channel's Pass before its connect() returns. verbs has no such place: there the previous queue
// pair is destroyed, or reset if the new channel is of another transport. All hosts of a node share
// a table.
//
// The table also tells which borrowers are connected: the node reports their session groups to the
// coordinator, which reclaims no region whose borrower still has a channel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "rdma/session.h"

namespace farpage::rdma {

// How a channel ended, as far as the node knows.
enum class SessionEnd : uint8_t {
  kClosed,     // the peer's kernel closed the connection: the process exited or closed it
  kUncertain,  // the peer does not answer: it may be stopped, suspended, or unreachable
};

// Threads: any. A use that waits for a disk holds back newer channels of its own session alone: no
// gate is waited for with the table locked. Locks are taken in the order newer gate, older gate.
// Invariants:
//  1. At most one Pass of each session is open: that of the latest enter().
//  2. Once enter() has returned, no use_if_open() of an older Pass is running, and none begins.
//  3. There is exactly one entry for each open Pass: the table is as long as its owner has
//     connections.
//  4. A group whose channel ended kUncertain is listed by groups() for `grace` from then on.
class SessionFences {
 private:
  struct Gate {
    Mutex mutex;
    bool fenced FARPAGE_GUARDED_BY(mutex) = false;
    std::function<void()> when_fenced FARPAGE_GUARDED_BY(mutex);  // empty: the Pass has ended
  };
  using Key = std::pair<uint64_t, uint64_t>;

 public:
  // One channel's right to apply operations. Move-only; its destructor leaves the session. A
  // default Pass is always open: channels without a session have one.
  //
  // Threads: use_if_open() from one at a time.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept;
    Pass& operator=(Pass&& other) noexcept;
    ~Pass() { leave(); }

    // Calls `use` unless a newer channel has taken over; returns whether it did. A newer channel
    // waits for `use`, which should therefore be short, and must not enter or leave a session.
    template <typename Use>
    [[nodiscard]] bool use_if_open(Use&& use) const {
      if (gate_ == nullptr) {
        use();
        return true;
      }
      const MutexLock lock(gate_->mutex);
      if (gate_->fenced) return false;
      use();
      return true;
    }
    bool is_open() const {
      return use_if_open([] {});
    }

    // Leaves the session now, as the destructor does, and records how the channel ended.
    void leave(SessionEnd end = SessionEnd::kClosed);

   private:
    friend class SessionFences;
    Pass(SessionFences* fences, Key key, std::shared_ptr<Gate> gate)
        : fences_(fences), key_(key), gate_(std::move(gate)) {}

    SessionFences* fences_ = nullptr;
    Key key_{};
    std::shared_ptr<Gate> gate_;
  };

  static constexpr Nanoseconds kDefaultGrace = std::chrono::minutes(10);
  static constexpr size_t kMaxGroups = size_t{1} << 16;  // limit of groups()

  explicit SessionFences(Nanoseconds grace = kDefaultGrace) : grace_(grace) {}
  SessionFences(const SessionFences&) = delete;
  SessionFences& operator=(const SessionFences&) = delete;

  // The pass of the newest channel of `session` to `host` (0 if there is only one host). Session 0
  // is no session. `when_fenced` is called at most once, when a newer channel takes over, and never
  // after the Pass is destroyed; it must not block. The table must outlive the Pass.
  Pass enter(uint64_t session, uint64_t host = 0, std::function<void()> when_fenced = {});

  // The groups of all open Passes and of those that ended kUncertain within the grace before `now`,
  // in ascending order, each once, without group 0.
  std::vector<SessionGroup> groups(Instant now = SteadyClock::read());

  size_t size() const;

 private:
  const Nanoseconds grace_;
  mutable Mutex mutex_;
  std::map<Key, std::shared_ptr<Gate>> open_ FARPAGE_GUARDED_BY(mutex_);
  std::map<SessionGroup, Instant> uncertain_
      FARPAGE_GUARDED_BY(mutex_);  // until when a group without a channel is listed
};

}  // namespace farpage::rdma
