// SessionFences: of all channels that one session ever had, only the newest may act.
//
// A borrower gives up a channel whose operations did not complete, connects anew, and writes the
// same pages again with newer bytes. The old bytes may still be on their way: in a socket's buffer,
// in a list of delayed operations. Applied later they would silently undo the newer ones. So the
// side that applies operations does it with a Pass, and a new channel takes the pass away from the
// former one before its connect() returns. verbs has no such place: there the former queue pair is
// destroyed, or reset when the new channel is another transport's. All hosts of a node share a
// table.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace farpage::rdma {

// Threads: any. Locks are taken in the order table, gate.
// Invariants:
//  1. At most one Pass of each session is open: that of the latest enter().
//  2. Once enter() has returned, no use_if_open() of a former Pass is under way, and none begins.
//  3. There is an entry for each open Pass and no other: the table is as long as its owner has
//     connections.
class SessionFences {
 private:
  struct Gate {
    std::mutex mutex;
    bool fenced = false;                // guarded by mutex
    std::function<void()> when_fenced;  // constant
  };
  using Key = std::pair<uint64_t, uint64_t>;

 public:
  // One channel's right to act. Move-only; its destruction leaves the session. A default Pass is
  // always open: that of a channel without a session.
  //
  // Threads: use_if_open() from one at a time.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept;
    Pass& operator=(Pass&& other) noexcept;
    ~Pass() { leave(); }

    // Calls `use` unless a newer channel has taken over; returns whether it did. A newer channel
    // waits for `use`, which must therefore be short and must not enter or leave a session.
    template <typename Use>
    [[nodiscard]] bool use_if_open(Use&& use) const {
      if (gate_ == nullptr) {
        use();
        return true;
      }
      const std::lock_guard lock(gate_->mutex);
      if (gate_->fenced) return false;
      use();
      return true;
    }
    bool is_open() const {
      return use_if_open([] {});
    }

   private:
    friend class SessionFences;
    Pass(SessionFences* fences, Key key, std::shared_ptr<Gate> gate)
        : fences_(fences), key_(key), gate_(std::move(gate)) {}
    void leave();

    SessionFences* fences_ = nullptr;
    Key key_{};
    std::shared_ptr<Gate> gate_;
  };

  SessionFences() = default;
  SessionFences(const SessionFences&) = delete;
  SessionFences& operator=(const SessionFences&) = delete;

  // The pass of the newest channel of `session` to `host` (0 where there is but one host). Session
  // 0 is no session. `when_fenced` is called, once at most, when a newer channel takes over, and
  // never after the Pass is destroyed; it must not block. The table must outlive the Pass.
  Pass enter(uint64_t session, uint64_t host = 0, std::function<void()> when_fenced = {});

  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<Gate>> open_;  // guarded by mutex_
};

}  // namespace farpage::rdma
