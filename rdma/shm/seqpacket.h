// Unix sockets that preserve message boundaries and pass descriptors, and where a host has its one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace farpage::rdma::shm {

// A host's socket. As text "BOOT_ID:/path"; the path is of the kernel with that boot id
// (base/host.h).
struct ShmAddress {
  std::string boot_id;
  std::string socket_path;
};
std::string to_text(const ShmAddress& address);
std::optional<ShmAddress> shm_address_from(std::string_view text);  // nullopt: no colon

// Listening, non-blocking. The directory must belong to this user alone (mode 0700; made if
// missing). A socket file without a listener is replaced; one with a listener is kConflict.
Result<Fd> listen_at(const std::string& path);
// Connected, non-blocking. kUnavailable without a listener.
Result<Fd> connect_at(const std::string& path);

// kDenied unless the peer runs as this process's user or as root; a root process accepts any.
Status check_peer_user(int socket);

enum class PacketOutcome : uint8_t { kDone, kWouldBlock, kPeerGone };

struct ReceivedPacket {
  PacketOutcome outcome = PacketOutcome::kWouldBlock;
  size_t bytes = 0;  // at most the buffer's size: a longer message is truncated
  Fd descriptor;     // invalid if none came
};

// Never block. `descriptor` -1: none.
PacketOutcome send_packet(int socket, std::span<const std::byte> bytes, int descriptor);
ReceivedPacket receive_packet(int socket, std::span<std::byte> buffer);

}  // namespace farpage::rdma::shm
