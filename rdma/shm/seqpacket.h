// Unix sockets that keep message boundaries and carry descriptors.
#pragma once

#include <span>
#include <string>

#include "base/fd.h"

namespace farpage::rdma::shm {

// Listening, non-blocking. The directory must be ours alone (mode 0700; made if missing). A socket
// file that nobody listens on any more is replaced, a live one is kConflict.
Result<Fd> listen_at(const std::string& path);
// Connected, non-blocking. kUnavailable when nobody listens.
Result<Fd> connect_at(const std::string& path);

// kDenied unless the other end runs under this process' user or as root; a root process accepts
// any.
Status check_peer_user(int socket);

enum class PacketOutcome : uint8_t { kDone, kWouldBlock, kPeerGone };

struct ReceivedPacket {
  PacketOutcome outcome = PacketOutcome::kWouldBlock;
  size_t bytes = 0;  // at most the buffer's size: a longer message is cut
  Fd descriptor;     // invalid if none came
};

// Never block. `descriptor` -1: none.
PacketOutcome send_packet(int socket, std::span<const std::byte> bytes, int descriptor);
ReceivedPacket receive_packet(int socket, std::span<std::byte> buffer);

}  // namespace farpage::rdma::shm
