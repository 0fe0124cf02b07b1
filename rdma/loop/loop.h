// The loop transport: hosts and channels inside one process, with trouble on request. For tests of
// everything above the transport seam; it follows the same contract as the real ones.
//
// Every choice comes from a generator seeded with LoopOptions::seed and the number of the channel,
// so a run with the same seed and the same calls on each channel is the same run. Print the seed.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "rdma/memory_host.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// Per mille: of the operations posted from then on.
struct LoopFaults {
  uint32_t delay_polls = 0;       // each operation waits 0 to so many calls of poll()
  Nanoseconds delay_time{0};      // and 0 to so long on the network's clock
  uint32_t lost_per_mille = 0;    // never answered: times out, and breaks its channel
  uint32_t failed_per_mille = 0;  // answered with failed_status, and nothing is copied
  CompletionStatus failed_status = CompletionStatus::kRemoteAccess;
  // WRITEs that would be so many bytes in flight on one channel are lost; 0: any number passes.
  size_t write_bytes_at_once = 0;
  bool reorder = false;  // complete as they become due, not in the order of posting
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
  // The next `operations` accepted operations, of whatever channel, end with this status (kOk is
  // not one). kPeerGone, kTimedOut and kFlushed break their channel, as they would on a wire.
  virtual void fail_next(CompletionStatus status, uint32_t operations) = 0;
  // While stalled a host answers nothing, so that operations time out. Unknown names are ignored.
  virtual void set_stalled(const std::string& host_name, bool stalled) = 0;
};

std::shared_ptr<LoopNetwork> make_loop_network(const LoopOptions& options = {});

// A host's death is its destruction: everything in flight to it ends with kPeerGone. Its restart is
// a new host of the same name. Fails with kConflict while one of that name lives.
Result<std::unique_ptr<MemoryHost>> make_loop_memory_host(
    const std::shared_ptr<LoopNetwork>& network, const std::string& name);

// connect() goes by TransportAddress::host. Limits as tcp.
std::unique_ptr<Transport> make_loop_transport(const std::shared_ptr<LoopNetwork>& network);

}  // namespace farpage::rdma
