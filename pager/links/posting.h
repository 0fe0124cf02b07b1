// Posting: operations of one port that go to one node, gathered for one call of its channel. Over
// TCP each call is a system call.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "base/check.h"
#include "pager/links/lease_map.h"
#include "pager/links/link_port.h"

namespace farpage::pager {

// How an operation reaches a replica now.
struct Route {
  const ReplicaLease& replica;
  rdma::Channel& channel;
  RemoteKey key;

  rdma::Operation operation(rdma::OperationKind kind, std::span<std::byte> local,
                            RemoteAddress remote, uint64_t token) const {
    return {.kind = kind,
            .local = local,
            .remote = remote,
            .key = key,
            .generation = replica.generation,
            .token = token};
  }
};

// Threads: the owner of the port.
template <size_t kMax>
class Posting {
 public:
  struct Posted {
    std::span<const rdma::Operation> accepted;
    std::span<const rdma::Operation> refused;  // the channel is full, or not usable any more
  };

  explicit Posting(LinkPort& port) : port_(port) {}

  size_t size() const { return count_; }
  bool full() const { return count_ == kMax; }
  // The gathered operations go to another node, and must be posted before any for this one.
  bool is_for_another(NodeIndex node) const { return count_ > 0 && node_ != node; }
  // nullptr: none at the moment. While something is gathered for the node, the port is not asked
  // again: it may end the channel.
  rdma::Channel* channel(NodeIndex node) {
    FARPAGE_CHECK(!is_for_another(node), "%zu operations for another node", count_);
    if (count_ == 0) {
      channel_ = port_.channel(node);
      node_ = node;
    }
    return channel_;
  }
  // The one place that answers "which channel, which key" for a replica: of demand READs, prefetch
  // and write-back. nullopt: there is no usable channel at the moment, or the replica has no key
  // for its transport. `post_gathered` posts what is gathered for another node.
  template <typename PostGathered>
  std::optional<Route> route(const ReplicaLease& replica, PostGathered&& post_gathered) {
    if (is_for_another(replica.node)) post_gathered();
    rdma::Channel* usable = channel(replica.node);
    if (usable == nullptr) return std::nullopt;
    const auto& key = replica.keys[static_cast<size_t>(usable->kind())];
    if (!key) return std::nullopt;
    return Route{replica, *usable, *key};
  }
  NodeIndex node() const { return node_; }
  // For the node that channel() was last asked for.
  void add(const rdma::Operation& operation) { operations_[count_++] = operation; }
  // Valid until the next add().
  Posted post() {
    const auto all = std::span<const rdma::Operation>(operations_).first(count_);
    if (all.empty()) return {};
    count_ = 0;
    const size_t accepted = channel_->post(all);
    port_.posted(node_, static_cast<uint32_t>(accepted));
    return {all.first(accepted), all.subspan(accepted)};
  }

 private:
  LinkPort& port_;
  rdma::Channel* channel_ = nullptr;
  NodeIndex node_;
  size_t count_ = 0;
  std::array<rdma::Operation, kMax> operations_{};
};

}  // namespace farpage::pager
