#include "rdma/tcp/wire_pace.h"

namespace farpage::rdma::tcp {

void WirePace::look(const WireUse& use) {
  posted_bytes_ = 0;
  const uint64_t bytes = use.acknowledged_bytes - judged_.acknowledged_bytes;
  const Nanoseconds busy = use.busy - judged_.busy;
  if (bytes < kBytes && busy < kBusy) return;
  const Nanoseconds work = busy - round_trips_ * use.round_trip;
  const bool slow = work.count() > kSlowNanosecondsPerByte * static_cast<int64_t>(bytes);
  slow_in_a_row_ = slow ? slow_in_a_row_ + 1 : 0;
  round_trips_ = 0;
  judged_ = use;
}

}  // namespace farpage::rdma::tcp
