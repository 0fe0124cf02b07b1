// A reliable-connected queue pair in two types: one that is not connected yet and is consumed by
// the handshake, and one that is ready to send. create() passes through RESET and INIT, connect()
// through RTR and RTS (InfiniBand Architecture 1.4, 10.3.1).
//
// Threads: the owner's, except where the specification allows any (the data path does not lock).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "rdma/endpoint.h"
#include "rdma/verbs/choices.h"
#include "rdma/verbs/resources.h"

namespace farpage::rdma::verbs {

// Owns the ibv_qp. After destruction the device accesses no buffer of its operations.
class QueuePairHandle {
 public:
  QueuePairHandle(std::shared_ptr<const ProtectionDomain> domain, ibv_qp* queue_pair)
      : domain_(std::move(domain)), queue_pair_(queue_pair) {}
  QueuePairHandle(QueuePairHandle&& other) noexcept;
  QueuePairHandle& operator=(QueuePairHandle&& other) noexcept;
  ~QueuePairHandle();

  ibv_qp* get() const { return queue_pair_; }
  const Device& device() const { return domain_->device(); }

 private:
  std::shared_ptr<const ProtectionDomain> domain_;
  ibv_qp* queue_pair_;
};

class QueuePair {
 public:
  uint32_t number() const { return handle_.get()->qp_num; }
  uint32_t mtu_bytes() const { return plan_.mtu_bytes; }
  // READs in flight at once: as many as both sides support.
  uint32_t read_depth() const { return plan_.max_rd_atomic; }
  uint32_t answer_depth() const { return plan_.max_dest_rd_atomic; }
  // Sends a linked list of requests with one doorbell; 0, or an error number and the first request
  // that was not taken.
  int post(ibv_send_wr* first, ibv_send_wr** not_taken) {
    return ibv_post_send(handle_.get(), first, not_taken);
  }
  // To RESET: packets that arrive from now on are dropped, and no operation on it is in progress.
  // Threads: any.
  Status reset();

 private:
  friend class UnconnectedQueuePair;
  QueuePair(QueuePairHandle handle, const ConnectionPlan& plan)
      : handle_(std::move(handle)), plan_(plan) {}

  QueuePairHandle handle_;
  ConnectionPlan plan_;
};

class UnconnectedQueuePair {
 public:
  // remote_access: what the peer may do to this side's registered memory (IBV_ACCESS_REMOTE_...).
  static Result<UnconnectedQueuePair> create(std::shared_ptr<const ProtectionDomain> domain,
                                             const CompletionQueue& completions,
                                             const LocalSide& local, uint32_t work_requests,
                                             unsigned remote_access);

  // What to send to the peer.
  QueuePairEndpoint endpoint() const;
  Result<QueuePair> connect(const QueuePairEndpoint& peer, const RetryPolicy& retry) &&;

 private:
  UnconnectedQueuePair(QueuePairHandle handle, LocalSide local, uint32_t psn)
      : handle_(std::move(handle)), local_(std::move(local)), psn_(psn) {}

  QueuePairHandle handle_;
  LocalSide local_;
  uint32_t psn_;
};

}  // namespace farpage::rdma::verbs
