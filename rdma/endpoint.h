// What a node publishes about its transports: its addresses, and the queue pair for one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"

namespace farpage::rdma {

// In the order of preference of `auto`. kFile is the borrower's own file (slab_file.h): no node
// offers it.
enum class TransportKind : uint8_t { kVerbs, kShm, kTcp, kLoop, kFile };
std::string_view to_string(TransportKind kind);
std::string names_of(const std::vector<TransportKind>& kinds);  // "shm,tcp"
// Of those that a node may offer.
std::optional<TransportKind> transport_kind_from(std::string_view name);

// A 128-bit GID as text, in the IPv6 notation: "::ffff:10.77.0.1" or "fe80::5054:ff:fe00:1".
// Validity is checked by is_gid().
bool is_gid(std::string_view text);

// A key as 40 lower-case hexadecimal digits: handle (or the card's rkey), then the secret.
std::string to_text(const RemoteKey& key);
std::optional<RemoteKey> remote_key_from(std::string_view text);

inline constexpr size_t kMaxAddressBytes = 512;

// One address of a memory node, as published. The transport of that kind writes and reads the text;
// everyone else passes it on.
struct TransportAddress {
  TransportKind kind = TransportKind::kTcp;
  std::string text;  // 1 to kMaxAddressBytes bytes of UTF-8 without control characters

  bool operator==(const TransportAddress&) const = default;
};

// One side of a reliable-connected queue pair. Exchanged through the coordinator; both sides are
// ready to send before the reply is given (InfiniBand Architecture 1.4, 10.3).
struct QueuePairEndpoint {
  // ChannelOptions::session of the peer: its previous queue pair is destroyed. 0: none.
  uint64_t session = 0;
  uint32_t qpn = 0;  // 24 bits
  uint32_t psn = 0;  // 24 bits, random
  uint16_t lid = 0;
  std::string gid;
  uint8_t gid_index = 0;
  bool is_global = true;  // RoCE: always; InfiniBand: across subnets
  uint32_t mtu_bytes = 1024;
  uint32_t max_rd_atomic = 1;       // READs this side may have in flight
  uint32_t max_dest_rd_atomic = 1;  // READs this side can answer at once

  bool operator==(const QueuePairEndpoint&) const = default;
};

}  // namespace farpage::rdma
