#include "pager/fault/wake_policy.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/timespec.h"

namespace farpage::pager {

WakePolicy::WakePolicy(std::vector<Doorbell> bells, Milliseconds first_rest)
    : first_rest_(first_rest), bells_(std::move(bells)), workers_(bells_.size()) {
  for (Worker& worker : workers_) worker.rest = first_rest_;
}

Result<std::unique_ptr<WakePolicy>> WakePolicy::create(uint32_t workers, Milliseconds first_rest) {
  std::vector<Doorbell> bells;
  for (uint32_t i = 0; i < workers; ++i) {
    FARPAGE_TRY(bell, Doorbell::create());
    bells.push_back(std::move(bell));
  }
  return std::unique_ptr<WakePolicy>(new WakePolicy(std::move(bells), first_rest));
}

bool WakePolicy::watch(uint32_t worker, int events) {
  if (stopped_.load(std::memory_order_acquire)) return false;
  Worker& me = workers_[worker];
  const Doorbell& bell = bells_[worker];
  if (me.rested) {
    rest(me, bell);
    return false;
  }
  std::array<pollfd, 2> polls{pollfd{events, POLLIN, 0}, pollfd{bell.fd(), POLLIN, 0}};
  me.role.store(WakeRole::kWatch, std::memory_order_release);
  (void)::poll(polls.data(), polls.size(), -1);
  me.role.store(WakeRole::kWork, std::memory_order_relaxed);
  if (polls[1].revents == 0) {
    // The target is exiting; the thread that watches it stops us.
    if ((polls[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) (void)::poll(&polls[1], 1, 10);
    return (polls[0].revents & POLLIN) != 0;
  }
  (void)bell.wait(Milliseconds(0));
  if (stopped_.load(std::memory_order_acquire)) return false;  // stop() may have rung
  if ((polls[0].revents & POLLIN) != 0) return true;
  rest(me, bell);
  return false;
}

// The recaller stores `sole_wins_`, then reads the duties; this does the reverse, so one of the two
// sees the other. A ring while `sole_wins_` is not 0 is a late dismissal, not a recall.
void WakePolicy::rest(Worker& me, const Doorbell& bell) {
  me.role.store(WakeRole::kRest, std::memory_order_seq_cst);
  const uint32_t wins = sole_wins_.load(std::memory_order_seq_cst);
  me.rested = wins != 0 && wins != me.seen_wins &&
              (!bell.wait(me.rest) || sole_wins_.load(std::memory_order_seq_cst) != 0);
  me.seen_wins = wins;
  me.role.store(WakeRole::kWork, std::memory_order_relaxed);
  me.rest = me.rested ? std::min(me.rest * 2, kLongestRest) : first_rest_;
}

void WakePolicy::await_room(uint32_t worker, int events, Nanoseconds timeout) {
  const Doorbell& bell = bells_[worker];
  const bool watches = events >= 0 && !room_watched_.exchange(true, std::memory_order_acq_rel);
  std::array<pollfd, 2> polls{pollfd{bell.fd(), POLLIN, 0}, pollfd{events, POLLIN, 0}};
  const timespec time = timespec_of(timeout);
  (void)::ppoll(polls.data(), watches ? 2 : 1, &time, nullptr);
  if (watches) room_watched_.store(false, std::memory_order_release);
  // A ring of another kind may be lost with it: then watch() looks once more, or one rests less.
  if (polls[0].revents != 0) (void)bell.wait(Milliseconds(0));
}

void WakePolicy::wake(uint64_t workers) {
  for (; workers != 0; workers &= workers - 1)
    bells_[static_cast<size_t>(std::countr_zero(workers))].ring();
}

void WakePolicy::won(uint32_t worker, Win win) {
  if (bells_.size() == 1) return;
  Worker& me = workers_[worker];
  me.rest = first_rest_;
  const bool again = last_winner_.load(std::memory_order_relaxed) == worker;
  if (!again) last_winner_.store(worker, std::memory_order_relaxed);
  if (again && win.alone && win.thread == me.thread) {
    me.doubts = 0;
    if (++me.wins < kWinsToStop) return;
    sole_wins_.store(me.wins, std::memory_order_relaxed);
    ring_all_on(WakeRole::kWatch, worker);
    return;
  }
  me.wins = 0;
  me.thread = win.thread;
  if (++me.doubts < kDoubtsToRecall && again) return;
  // A resting worker has seen wins; the thread that set them to 0 has recalled it.
  if (sole_wins_.load(std::memory_order_relaxed) == 0) return;
  sole_wins_.store(0, std::memory_order_seq_cst);
  ring_all_on(WakeRole::kRest, worker);
}

void WakePolicy::ring_all_on(WakeRole role, uint32_t but) {
  for (uint32_t i = 0; i < bells_.size(); ++i)
    if (i != but && workers_[i].role.load(std::memory_order_seq_cst) == role) bells_[i].ring();
}

void WakePolicy::look_again() {
  sole_wins_.store(0, std::memory_order_seq_cst);
  for (const Doorbell& bell : bells_) bell.ring();
}

void WakePolicy::stop() {
  stopped_.store(true, std::memory_order_release);
  for (const Doorbell& bell : bells_) bell.ring();
}

}  // namespace farpage::pager
