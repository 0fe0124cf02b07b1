// The loop transport: hosts and channels inside one process, with fault injection. For tests of the
// layers above the transport interface; it follows the same contract as the real transports.
//
// All random choices come from a generator seeded with LoopOptions::seed and the channel's number,
// so the same seed and the same calls on each channel reproduce a run. Print the seed.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "rdma/memory_host.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// The rates are per mille of the operations posted from then on.
struct LoopFaults {
  uint32_t delay_polls = 0;       // each operation waits 0 to this many calls of poll()
  Nanoseconds delay_time{0};      // and 0 to this long on the network's clock
  uint32_t lost_per_mille = 0;    // never answered: times out, and breaks its channel
  uint32_t failed_per_mille = 0;  // answered with failed_status, and nothing is copied
  CompletionStatus failed_status = CompletionStatus::kRemoteAccess;
  // A WRITE that would raise its channel's WRITE bytes in flight above this is lost; 0: no limit.
  size_t write_bytes_at_once = 0;
  bool reorder = false;  // complete when due, not in posting order
};

struct LoopOptions {
  uint64_t seed = 1;
  const Clock* clock =
      nullptr;  // for operation_timeout and delay_time; must outlive all. Null: real
  LoopFaults faults;
};

// Threads: any. Hosts and channels keep what they need of it alive.
class LoopNetwork {
 public:
  virtual ~LoopNetwork() = default;
  virtual void set_faults(const LoopFaults& faults) = 0;
  // The next `operations` accepted operations, of any channel, end with this status (not kOk).
  // kPeerGone, kTimedOut and kFlushed break their channel, as they would on a wire.
  virtual void fail_next(CompletionStatus status, uint32_t operations) = 0;
  // A stalled host answers nothing, so operations time out. Unknown names are ignored.
  virtual void set_stalled(const std::string& host_name, bool stalled) = 0;
};

std::shared_ptr<LoopNetwork> make_loop_network(const LoopOptions& options = {});

// Destroying a host simulates its death: everything in flight to it ends with kPeerGone. A restart
// is a new host of the same name. Fails with kConflict while one of that name exists.
Result<std::unique_ptr<MemoryHost>> make_loop_memory_host(
    const std::shared_ptr<LoopNetwork>& network, const std::string& name);

// connect() finds the host by the name in its address. Limits as tcp.
std::unique_ptr<Transport> make_loop_transport(const std::shared_ptr<LoopNetwork>& network);

}  // namespace farpage::rdma
