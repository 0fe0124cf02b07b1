// How every channel waits: spin with sched_yield, then block, depending on the poll mode.
//
// Waking an idle core costs some 20 us, several times a small READ, so a short spin pays off. The
// yield costs nothing on a core of our own and lets the peer run on a shared one.
#pragma once

#include <sched.h>

#include "base/clock.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// `timeout` from now on, without overflow.
inline Instant deadline_after(Instant now, Nanoseconds timeout) {
  return timeout > Nanoseconds::max() - now ? Nanoseconds::max() : now + timeout;
}

// poll() returns how many completions it stored; idle() says that nothing is in flight;
// block(until) sleeps until something may have happened, `until` at the latest.
template <typename Poll, typename Idle, typename Block>
size_t adaptive_wait(PollMode mode, Nanoseconds spin_time, Nanoseconds timeout, Poll&& poll,
                     Idle&& idle, Block&& block) {
  size_t stored = poll();
  if (stored > 0 || idle()) return stored;
  const Instant start = SteadyClock::read();
  const Instant deadline = deadline_after(start, timeout);
  Instant spin_until = start;
  if (mode == PollMode::kBusy) spin_until = deadline;
  if (mode == PollMode::kAdaptive)
    spin_until = std::min(deadline, deadline_after(start, spin_time));
  for (Instant now = start; now < deadline; now = SteadyClock::read()) {
    if (now < spin_until) {
      ::sched_yield();
    } else {
      block(deadline);
    }
    stored = poll();
    if (stored > 0 || idle()) return stored;
  }
  return 0;
}

}  // namespace farpage::rdma
