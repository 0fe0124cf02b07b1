// How a queue pair is configured to match its peer: port, GID, MTU, READ depth. Pure functions of
// this side's facts (PortFacts, the configuration) and of the peer's endpoint.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rdma/endpoint.h"
#include "rdma/transport.h"
#include "rdma/verbs/port_facts.h"

namespace farpage::rdma::verbs {

// Larger retry counts are refused: the specification's 7 is finite, but SoftRoCE takes it as
// unlimited, and an operation on a dead peer would never complete.
inline constexpr uint8_t kMaxRetryCount = 6;
// 5 bits in the queue pair; 0 would mean "never time out".
inline constexpr uint8_t kMinTimeoutExponent = 1;
inline constexpr uint8_t kMaxTimeoutExponent = 31;
// READ depth is 8 bits in the queue pair's attributes.
inline constexpr uint32_t kMaxReadDepth = 255;
inline constexpr uint32_t kMask24Bits = 0xffffff;

struct PortWish {
  std::string device;       // empty: any
  uint8_t port = 0;         // 0: any
  int gid_index = -1;       // -1: chosen by choose_gid
  uint32_t mtu_bytes = 0;   // 0: no cap
  uint32_t read_depth = 0;  // 0: no cap
};

// Why no queue pair of ours can use this port; empty if it can.
std::string why_unusable(const PortFacts& port);

// The first port that matches the wish and can be used. kUnsupported if there is none: the text
// gives the reason for each candidate. kInvalid if the wish itself is wrong.
Result<PortFacts> choose_port(const Survey& survey, const PortWish& wish);

// index -1: on Ethernet RoCE v2, IPv4-mapped first, then other addresses, then link-local ones
// (they depend on the neighbour tables of IPv6); on InfiniBand the first. Otherwise that index,
// which must hold a GID.
Result<GidFacts> choose_gid(const PortFacts& port, int index);

// The local side of a connection, before the peer is known.
struct LocalSide {
  PortFacts port;
  GidFacts gid;
  uint32_t mtu_bytes = 0;           // min of the active MTU and the cap
  uint32_t max_rd_atomic = 0;       // READs we may have in flight
  uint32_t max_dest_rd_atomic = 0;  // READs we can answer at once
};
Result<LocalSide> choose_local_side(const Survey& survey, const PortWish& wish);

// What we send to the peer.
QueuePairEndpoint endpoint_of(const LocalSide& local, uint32_t qpn, uint32_t psn);

struct RetryPolicy {
  uint8_t timeout_exponent = 14;
  uint8_t retry_count = 3;
};
// Names the option that is out of range and says why.
Status check_retry_policy(const RetryPolicy& policy);

// The attributes that bring a queue pair to ready-to-receive and ready-to-send.
struct ConnectionPlan {
  ibv_mtu path_mtu = IBV_MTU_1024;
  uint32_t mtu_bytes = 1024;
  uint32_t peer_qpn = 0;
  uint32_t peer_psn = 0;
  uint32_t own_psn = 0;
  uint8_t max_rd_atomic = 1;
  uint8_t max_dest_rd_atomic = 1;
  RetryPolicy retry;
  ibv_ah_attr path{};
};
// Combines both sides. The peer's endpoint is not trusted: kInvalid names its wrong field.
Result<ConnectionPlan> plan_connection(const LocalSide& local, uint32_t own_psn,
                                       const QueuePairEndpoint& peer, const RetryPolicy& retry);

// The channel's status for a work completion.
CompletionStatus completion_status_of(ibv_wc_status status);

}  // namespace farpage::rdma::verbs
