#include "rdma/verbs/queue_pair.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/host.h"
#include "base/log.h"

namespace farpage::rdma::verbs {
namespace {

// No RECV is ever posted, so receiver-not-ready cannot happen; 12 (0.64 ms) and 6 are customary.
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kRnrRetry = 6;

Status modify(const QueuePairHandle& handle, ibv_qp_attr& attributes, int mask,
              std::string_view to_state) {
  const int error = handle.device().library().modify_qp(handle.get(), &attributes, mask);
  if (error == 0) return {};
  return fail_errno("queue pair on " + handle.device().name() + " to " + std::string(to_state),
                    error);
}

Status to_init(const QueuePairHandle& handle, uint8_t port, unsigned remote_access) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = port;
  attributes.qp_access_flags = remote_access;
  return modify(handle, attributes,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

Status to_ready_to_receive(const QueuePairHandle& handle, const ConnectionPlan& plan) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = plan.path_mtu;
  attributes.dest_qp_num = plan.peer_qpn;
  attributes.rq_psn = plan.peer_psn;
  attributes.max_dest_rd_atomic = plan.max_dest_rd_atomic;
  attributes.min_rnr_timer = kMinRnrTimer;
  attributes.ah_attr = plan.path;
  return modify(handle, attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "RTR");
}

Status to_ready_to_send(const QueuePairHandle& handle, const ConnectionPlan& plan) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = plan.retry.timeout_exponent;
  attributes.retry_cnt = plan.retry.retry_count;
  attributes.rnr_retry = kRnrRetry;
  attributes.sq_psn = plan.own_psn;
  attributes.max_rd_atomic = plan.max_rd_atomic;
  return modify(handle, attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

}  // namespace

QueuePairHandle::QueuePairHandle(QueuePairHandle&& other) noexcept
    : domain_(std::move(other.domain_)), queue_pair_(std::exchange(other.queue_pair_, nullptr)) {}

QueuePairHandle& QueuePairHandle::operator=(QueuePairHandle&& other) noexcept {
  std::swap(domain_, other.domain_);
  std::swap(queue_pair_, other.queue_pair_);
  return *this;
}

QueuePairHandle::~QueuePairHandle() {
  if (queue_pair_ == nullptr) return;
  const uint32_t number = queue_pair_->qp_num;
  // Fails only if the driver lost its device. Log it, because callers rely on the destruction.
  if (const int error = device().library().destroy_qp(queue_pair_); error != 0)
    log::error("verbs: queue_pair_not_destroyed device={} qpn={} error=\"{}\"", device().name(),
               number, ::strerrordesc_np(error));
}

Status QueuePair::reset() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  return modify(handle_, attributes, IBV_QP_STATE, "RESET");
}

Result<UnconnectedQueuePair> UnconnectedQueuePair::create(
    std::shared_ptr<const ProtectionDomain> domain, const CompletionQueue& completions,
    const LocalSide& local, uint32_t work_requests, unsigned remote_access) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = completions.get();
  wanted.recv_cq = completions.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 0;
  wanted.cap.max_send_wr = work_requests;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  ibv_qp* made = domain->device().library().create_qp(domain->get(), &wanted);
  if (made == nullptr) {
    return fail_errno("create a queue pair of " + std::to_string(work_requests) + " requests on " +
                      domain->device().name());
  }
  QueuePairHandle handle(std::move(domain), made);
  FARPAGE_TRY_VOID(to_init(handle, local.port.port, remote_access));
  // Random, so that packets of an earlier connection with the same numbers are not accepted.
  return UnconnectedQueuePair(std::move(handle), local, random_u32() & kMask24Bits);
}

QueuePairEndpoint UnconnectedQueuePair::endpoint() const {
  return endpoint_of(local_, handle_.get()->qp_num, psn_);
}

Result<QueuePair> UnconnectedQueuePair::connect(const QueuePairEndpoint& peer,
                                                const RetryPolicy& retry) && {
  FARPAGE_TRY(plan, plan_connection(local_, psn_, peer, retry));
  FARPAGE_TRY_VOID(to_ready_to_receive(handle_, plan));
  FARPAGE_TRY_VOID(to_ready_to_send(handle_, plan));
  return QueuePair(std::move(handle_), plan);
}

}  // namespace farpage::rdma::verbs
