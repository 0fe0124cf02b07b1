// The seam over RDMA verbs: InfiniBand, RoCE v2 and SoftRoCE, through rdma-core alone.
//
// libibverbs is loaded at run time, so a program with this linked in starts on a machine that lacks
// it; whoever asks for verbs there gets kUnsupported and the reason. The same holds for a build
// made without its headers.
//
// A Channel is one reliable-connected queue pair of its own (InfiniBand Architecture 1.4, 10.3).
// The other end is made by the node's MemoryHost, one for each channel; the two are told of each
// other by the caller (QueuePairExchange). iWARP devices are refused: they connect through rdma_cm
// only.
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

// kUnsupported if libibverbs cannot be loaded. Whether a device fits is seen by connect(), which
// fails with kUnsupported if none does. connect() blocks in the exchange: the exchange's own time
// limit is the one that counts.
Result<std::unique_ptr<Transport>> make_verbs_transport();

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
// and for finding peers that are gone: a peer that does not answer a probe loses its queue pair
// within two intervals, one that connects anew with the same queue pair at once.
Result<std::unique_ptr<MemoryHost>> make_verbs_memory_host(const VerbsHostOptions& options);

struct GidReport {
  uint32_t index = 0;
  std::string gid;   // "::ffff:10.77.0.1"
  std::string type;  // "InfiniBand", "RoCE v1", "RoCE v2"
};

// One port of one device, for people to read.
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
