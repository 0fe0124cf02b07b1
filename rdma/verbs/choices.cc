#include "rdma/verbs/choices.h"

#include <algorithm>
#include <array>

namespace farpage::rdma::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
constexpr int kMaxGidIndex = 255;  // 8 bits in a path

std::string name_of(const PortFacts& port) {
  return port.device + " port " + std::to_string(port.port);
}

bool is_ipv4_mapped(const GidBytes& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.begin());
}

bool is_link_local(const GidBytes& gid) {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

bool same_subnet(const GidBytes& a, const GidBytes& b) {
  return std::equal(a.begin(), a.begin() + 8, b.begin());
}

// Lower is better; GIDs that are used only on request have no rank.
std::optional<int> gid_rank(const PortFacts& port, const GidFacts& gid) {
  if (gid.index > kMaxGidIndex) return std::nullopt;
  if (!port.ethernet) return 0;
  if (gid.type != GidType::kRoceV2) return std::nullopt;
  if (is_ipv4_mapped(gid.gid)) return 0;
  return is_link_local(gid.gid) ? 2 : 1;
}

uint32_t capped(uint32_t value, uint32_t cap) {
  return cap == 0 ? value : std::min(value, cap);
}

uint8_t read_depth(uint32_t ours, uint32_t peers) {
  return static_cast<uint8_t>(std::clamp(std::min(ours, peers), 1U, kMaxReadDepth));
}

tl::unexpected<Error> bad_peer(std::string_view field, const std::string& why) {
  return fail(ErrorCode::kInvalid,
              "the peer's queue pair endpoint: " + std::string(field) + " " + why);
}

Status check_peer(const LocalSide& local, const QueuePairEndpoint& peer) {
  if (peer.qpn == 0 || peer.qpn > kMask24Bits) {
    return bad_peer("qpn", std::to_string(peer.qpn) + " is not in 1..16777215");
  }
  if (peer.psn > kMask24Bits) return bad_peer("psn", "has more than 24 bits");
  if (!mtu_from_bytes(peer.mtu_bytes)) {
    return bad_peer("mtu_bytes",
                    std::to_string(peer.mtu_bytes) + " is not one of 256, 512, 1024, 2048, 4096");
  }
  if (peer.max_dest_rd_atomic == 0) return bad_peer("max_dest_rd_atomic", "must be 1 or more");
  if (local.port.ethernet && !peer.is_global) {
    return bad_peer("is_global", "is false: it is on InfiniBand and this side on Ethernet");
  }
  if ((peer.is_global || !peer.gid.empty()) && !gid_from_text(peer.gid)) {
    return bad_peer("gid", "'" + peer.gid + "' is not in IPv6 notation");
  }
  const auto gid = gid_from_text(peer.gid);
  if (local.port.ethernet && is_ipv4_mapped(*gid) != is_ipv4_mapped(local.gid.gid)) {
    return bad_peer("gid", "'" + peer.gid + "' and ours, '" + gid_text(local.gid.gid) +
                               "', are not both IPv4: set gid_index on one side");
  }
  if (!local.port.ethernet && peer.lid == 0) return bad_peer("lid", "must not be 0 on InfiniBand");
  return {};
}

// RoCE always carries the global header; InfiniBand only between subnets.
ibv_ah_attr path_to(const LocalSide& local, const QueuePairEndpoint& peer) {
  ibv_ah_attr path{};
  path.port_num = local.port.port;
  path.dlid = peer.lid;
  const auto gid = gid_from_text(peer.gid);
  if (gid && (local.port.ethernet || !same_subnet(*gid, local.gid.gid))) {
    path.is_global = 1;
    std::copy(gid->begin(), gid->end(), path.grh.dgid.raw);
    path.grh.sgid_index = static_cast<uint8_t>(local.gid.index);
    path.grh.hop_limit = kHopLimit;
  }
  return path;
}

}  // namespace

std::string why_unusable(const PortFacts& port) {
  if (port.iwarp) return "iWARP devices connect through rdma_cm only, which is not supported";
  if (port.state != IBV_PORT_ACTIVE) {
    return "the port is " + std::string(to_string(port.state)) + ", not ACTIVE";
  }
  if (port.active_mtu_bytes == 0) return "the port has no valid MTU";
  if (port.max_init_rd_atomic == 0 || port.max_resp_rd_atomic == 0) {
    return "the device cannot do RDMA READ";
  }
  if (const auto gid = choose_gid(port, -1); !gid) return gid.error().context;
  return {};
}

Result<PortFacts> choose_port(const Survey& survey, const PortWish& wish) {
  std::string reasons;
  const auto add_reason = [&](const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  };
  for (const PortFacts& port : survey.ports) {
    if (!wish.device.empty() && wish.device != port.device) continue;
    if (wish.port != 0 && wish.port != port.port) continue;
    const std::string why_not = why_unusable(port);
    if (why_not.empty()) return port;
    add_reason(name_of(port) + ": " + why_not);
  }
  for (const std::string& reason : survey.unreadable) add_reason(reason);
  if (!reasons.empty())
    return fail(ErrorCode::kUnsupported, "no RDMA port can be used: " + reasons);
  if (wish.device.empty() && wish.port == 0) {
    return fail(ErrorCode::kUnsupported,
                "this machine has no RDMA device ('rdma link' lists them; is the driver loaded?)");
  }
  return fail(ErrorCode::kUnsupported,
              "no RDMA device " +
                  (wish.device.empty() ? std::string("") : "'" + wish.device + "'") +
                  (wish.port == 0 ? "" : " with port " + std::to_string(wish.port)) +
                  " on this machine ('rdma link' lists them)");
}

Result<GidFacts> choose_gid(const PortFacts& port, int index) {
  const GidFacts* best = nullptr;
  std::optional<int> best_rank;
  for (const GidFacts& gid : port.gids) {
    if (index >= 0) {
      if (gid.index == static_cast<uint32_t>(index)) return gid;
      continue;
    }
    const auto rank = gid_rank(port, gid);
    if (rank && (!best_rank || *rank < *best_rank)) {
      best = &gid;
      best_rank = rank;
    }
  }
  if (best != nullptr) return *best;
  if (index >= 0) {
    return fail(ErrorCode::kInvalid, "gid_index " + std::to_string(index) + ": " + name_of(port) +
                                         " has no GID there ('farpage doctor' lists them)");
  }
  return fail(ErrorCode::kUnsupported,
              port.ethernet
                  ? "the port has no RoCE v2 GID (does its network device have an address?)"
                  : "the port has no GID");
}

Result<LocalSide> choose_local_side(const Survey& survey, const PortWish& wish) {
  if (wish.mtu_bytes != 0 && !mtu_from_bytes(wish.mtu_bytes)) {
    return fail(ErrorCode::kInvalid, "mtu " + std::to_string(wish.mtu_bytes) +
                                         " is not one of 256, 512, 1024, 2048, 4096");
  }
  if (wish.gid_index > kMaxGidIndex) {
    return fail(ErrorCode::kInvalid,
                "gid_index " + std::to_string(wish.gid_index) + " is above 255");
  }
  LocalSide local;
  FARPAGE_TRY(port, choose_port(survey, wish));
  FARPAGE_TRY(gid, choose_gid(port, wish.gid_index));
  local.mtu_bytes = capped(port.active_mtu_bytes, wish.mtu_bytes);
  local.max_rd_atomic = std::min(capped(port.max_init_rd_atomic, wish.read_depth), kMaxReadDepth);
  local.max_dest_rd_atomic =
      std::min(capped(port.max_resp_rd_atomic, wish.read_depth), kMaxReadDepth);
  local.port = std::move(port);
  local.gid = gid;
  return local;
}

QueuePairEndpoint endpoint_of(const LocalSide& local, uint32_t qpn, uint32_t psn) {
  QueuePairEndpoint endpoint;
  endpoint.qpn = qpn;
  endpoint.psn = psn;
  endpoint.lid = local.port.lid;
  endpoint.gid = gid_text(local.gid.gid);
  endpoint.gid_index = static_cast<uint8_t>(local.gid.index);
  endpoint.is_global = local.port.ethernet;
  endpoint.mtu_bytes = local.mtu_bytes;
  endpoint.max_rd_atomic = local.max_rd_atomic;
  endpoint.max_dest_rd_atomic = local.max_dest_rd_atomic;
  return endpoint;
}

Status check_retry_policy(const RetryPolicy& policy) {
  if (policy.retry_count > kMaxRetryCount) {
    return fail(
        ErrorCode::kInvalid,
        "retry_count " + std::to_string(policy.retry_count) +
            " is above 6: 7 means for ever on SoftRoCE, so an operation on a dead node would "
            "never end");
  }
  if (policy.timeout_exponent < kMinTimeoutExponent ||
      policy.timeout_exponent > kMaxTimeoutExponent) {
    return fail(ErrorCode::kInvalid, "timeout_exponent " + std::to_string(policy.timeout_exponent) +
                                         " is not in 1..31 (0 would mean no time limit)");
  }
  return {};
}

Result<ConnectionPlan> plan_connection(const LocalSide& local, uint32_t own_psn,
                                       const QueuePairEndpoint& peer, const RetryPolicy& retry) {
  FARPAGE_TRY_VOID(check_retry_policy(retry));
  FARPAGE_TRY_VOID(check_peer(local, peer));
  ConnectionPlan plan;
  plan.mtu_bytes = std::min(local.mtu_bytes, peer.mtu_bytes);
  plan.path_mtu = *mtu_from_bytes(plan.mtu_bytes);
  plan.peer_qpn = peer.qpn;
  plan.peer_psn = peer.psn;
  plan.own_psn = own_psn;
  plan.max_rd_atomic = read_depth(local.max_rd_atomic, peer.max_dest_rd_atomic);
  plan.max_dest_rd_atomic = read_depth(local.max_dest_rd_atomic, peer.max_rd_atomic);
  plan.retry = retry;
  plan.path = path_to(local, peer);
  return plan;
}

CompletionStatus completion_status_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return CompletionStatus::kOk;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return CompletionStatus::kRemoteAccess;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return CompletionStatus::kPeerGone;
    case IBV_WC_RESP_TIMEOUT_ERR:
      return CompletionStatus::kTimedOut;
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::kFlushed;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
    case IBV_WC_TM_ERR:
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return CompletionStatus::kLocalError;
  }
  return CompletionStatus::kLocalError;  // a status newer than this list
}

}  // namespace farpage::rdma::verbs
