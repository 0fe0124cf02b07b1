// The waiting of all channels: spin with sched_yield, then block, as the poll mode says.
//
// Waking an idle core costs some 20 us, several times a small READ, so a short spin pays; the yield
// costs nothing on a core that is ours alone and lets the peer run on one that is not.
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
