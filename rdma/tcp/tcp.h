// The TCP transport: framed READ and WRITE over persistent, pipelined connections. Works between
// any two hosts; needs io_uring on the node's side alone.
//
// It has no encryption and no authentication: anyone who reaches the port and knows an rkey and its
// generation can use that slab. Use it only on a trusted network (docs/protocol-tcp.md).
#pragma once

#include <memory>
#include <string>

#include "rdma/memory_host.h"
#include "rdma/session_fences.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// connect() resolves the "host:port" of the address. Fails with kUnavailable without an answer,
// kUnsupported when the node speaks another protocol version. Channels use plain non-blocking
// sockets; a channel's limits are operations_in_flight (1 to 1024) operations of up to 1 MiB.
std::unique_ptr<Transport> make_tcp_transport();

struct TcpHostOptions {
  std::string listen_host = "127.0.0.1";
  uint16_t port = 0;           // 0: any free one
  std::string advertise_host;  // for address(); empty: listen_host, if that is not a wildcard
  unsigned server_threads = 1;
  uint32_t max_connections = 1024;
  Nanoseconds spin_time = std::chrono::microseconds(50);  // before a server thread blocks
  // How long withdraw() lets replies from the slab be sent before it disconnects their receivers.
  Nanoseconds withdraw_grace = Milliseconds(200);
  Nanoseconds hello_timeout = Seconds(5);
  std::shared_ptr<SessionFences> fences = nullptr;  // of the whole node; null: one of its own
  // A peer that receives none of its replies for this long is disconnected.
  Nanoseconds stall_timeout = Seconds(30);
};

// Starts the server threads. Fails with kInvalid (names the field), kUnsupported without io_uring,
// or the error of bind(2).
Result<std::unique_ptr<MemoryHost>> make_tcp_memory_host(TcpHostOptions options);

}  // namespace farpage::rdma
