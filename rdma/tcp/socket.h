// TCP sockets as both sides of the transport set them up.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "rdma/tcp/wire_pace.h"

namespace farpage::rdma::tcp {

// A connected, non-blocking, tuned socket. Attempts each address of the name until the deadline.
Result<Fd> connect_to(const std::string& host, uint16_t port, Instant deadline);

// A bound, listening, blocking socket (SO_REUSEADDR).
Result<Fd> listen_on(const std::string& host, uint16_t port);
Result<uint16_t> port_of(int socket);
// Whether the name stands for every local address: "", "0.0.0.0", "::" or "*".
bool is_wildcard(const std::string& host);

// TCP_NODELAY, keep-alive, and cubic where the kernel has it: bbr, the default of some
// distributions, costs up to a third of the throughput at large windows. None is essential, so
// failures are ignored.
void tune(int socket);
// For the node's end: a connection whose peer does not acknowledge sent data ends
// (TCP_USER_TIMEOUT, RFC 5482) as soon as an idle one does, not after the kernel's 15 minutes.
void limit_unacknowledged(int socket);

// Both ends have one address: there is no wire between them.
bool is_to_own_host(int socket);
// Whether the peer's kernel has not acknowledged all that was sent.
bool has_unacknowledged(int socket);
// nullopt: the kernel does not tell.
std::optional<WireUse> wire_use(int socket);

// For handshakes on non-blocking sockets. Fail with kTimedOut, or kUnavailable when the peer
// closed.
Status send_all(int socket, std::span<const std::byte> bytes, Instant deadline);
Status receive_all(int socket, std::span<std::byte> bytes, Instant deadline);

// "192.0.2.1:4791", for the log.
std::string peer_name(int socket);
// The same without the port; empty when the peer is gone.
std::string peer_address(int socket);

}  // namespace farpage::rdma::tcp
