#include "pager/links/slab_transfer.h"

#include <algorithm>
#include <thread>

namespace farpage::pager {
namespace {

constexpr Nanoseconds kPatience = Seconds(1);  // with a node that has no channel
constexpr Milliseconds kChannelPause{1};

}  // namespace

Nanoseconds rest_at_rate(uint64_t bytes, uint64_t bytes_per_second, Nanoseconds took) {
  const auto due = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second);
  return std::max(Nanoseconds(static_cast<int64_t>(due)) - took, Nanoseconds(0));
}

void pause_between_looks(Nanoseconds waited) {
  constexpr Nanoseconds kYields = std::chrono::microseconds(100);
  if (waited < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::optional<rdma::CompletionStatus> SlabTransfer::run(rdma::OperationKind kind,
                                                        const LeaseMap& leases,
                                                        const ReplicaLease& replica,
                                                        PageIndex first,
                                                        std::span<std::byte> local) {
  const Instant start = SteadyClock::read();
  while (true) {
    const std::optional<Route> route = posting_.route(replica, [] {});
    if (route) {
      posting_.add(route->operation(kind, local, leases.address_of(replica, first), 0));
      if (!posting_.post().accepted.empty()) break;
    }
    if (is_stopping() || SteadyClock::read() - start > kPatience) return std::nullopt;
    std::this_thread::sleep_for(kChannelPause);
  }
  const Instant posted = SteadyClock::read();
  std::optional<rdma::CompletionStatus> ended;
  while (true) {
    (void)port_.take_completions(
        [&](const rdma::Completion& completion) { ended = completion.status; });
    if (ended) return ended;
    pause_between_looks(SteadyClock::read() - posted);
  }
}

}  // namespace farpage::pager
