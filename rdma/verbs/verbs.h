// The verbs transport: InfiniBand, RoCE v2 and SoftRoCE, through rdma-core alone.
//
// libibverbs is loaded at run time, so a program linked with this starts on a machine without it;
// calls for verbs there fail with kUnsupported and the reason. The same holds for a build without
// its headers.
//
// A Channel is one reliable-connected queue pair of its own (InfiniBand Architecture 1.4, 10.3).
// The node's MemoryHost makes the other end, one for each channel; the caller exchanges the two
// endpoints (QueuePairExchange). iWARP devices are refused: they connect only through rdma_cm.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "rdma/memory_host.h"
#include "rdma/session_fences.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// Whether this binary was built with libibverbs' headers.
bool built_with_verbs();

// The queue pairs of a transport.
struct VerbsOptions {
  std::string device;             // empty: the first with an active port
  uint8_t device_port = 0;        // 0: the first active one
  int gid_index = -1;             // -1: RoCE v2, IPv4-mapped first
  uint32_t mtu_bytes = 0;         // 0: min of both active MTUs; else an upper limit
  uint32_t max_rd_atomic = 0;     // READs in flight. 0: the device's limit; else an upper limit
  uint32_t cq_depth = 0;          // 0: ChannelOptions::operations_in_flight
  uint8_t timeout_exponent = 14;  // 4.096 us * 2^timeout for each attempt
  uint8_t retry_count = 3;        // at most 6: SoftRoCE retries 7 without end
};

// kUnsupported if libibverbs cannot be loaded. connect() determines whether a device fits, and
// fails with kUnsupported if none does, and with kInvalid for an option that cannot work. It blocks
// in the exchange: the exchange's own time limit applies.
Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options);

struct VerbsHostOptions {
  std::string device;          // empty: the first with an active port
  uint8_t device_port = 0;     // 0: the first active one
  int gid_index = -1;          // -1: RoCE v2, IPv4-mapped first
  uint32_t mtu_bytes = 0;      // 0: the port's active MTU; else an upper limit
  uint32_t max_rd_atomic = 0;  // READs answered at once for one peer; 0: device limit
  uint32_t max_peers = 1024;   // queue pairs at once; further peers are refused
  std::shared_ptr<SessionFences> fences = nullptr;       // of the whole node; null: one of its own
  Nanoseconds peer_check_interval = Milliseconds(5000);  // how often silent peers are probed
};

// kUnsupported with the reason if no device fits. Threads: one of its own, for the device's events
// and for dead peers: a peer that does not answer a probe loses its queue pair within two
// intervals; one that reconnects with the same queue pair loses the old one at once.
Result<std::unique_ptr<MemoryHost>> make_verbs_memory_host(const VerbsHostOptions& options);

struct GidReport {
  uint32_t index = 0;
  std::string gid;   // "::ffff:10.77.0.1"
  std::string type;  // "InfiniBand", "RoCE v1", "RoCE v2"
};

// One port of one device, for display.
struct DeviceReport {
  std::string device;
  uint8_t port = 0;
  std::string state;       // "ACTIVE", "DOWN", ...
  std::string link_layer;  // "InfiniBand", "Ethernet"
  uint32_t active_mtu_bytes = 0;
  uint32_t max_rd_atomic = 0;  // READs that one queue pair may have in flight
  std::vector<GidReport> gids;
  std::string unusable_because;  // empty: it can be used
};

// Every port of every device. Empty if there is none; kUnsupported if libibverbs cannot be loaded.
Result<std::vector<DeviceReport>> list_devices();

}  // namespace farpage::rdma
