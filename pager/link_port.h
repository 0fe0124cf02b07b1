// LinkPort: the channels of one owner (a thread, or who has the evictor's turn) for one purpose,
// one to each memory node, and how broken ones are replaced without the owner ever waiting for a
// connection.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/doorbell.h"
#include "pager/lease_map.h"
#include "pager/options.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Threads: the connector thread calls wants(), deliver() and take_retired(); all else but request()
// is the owner's. Invariant: a channel has exactly one owner: the connector until deliver(), then
// the port.
class LinkPort {
 public:
  // `buffer`: what READs and WRITEs of this thread land in and leave from. `wanted`: rung when a
  // channel is missing. Both outlive the port. `session_group`: of the pager's process.
  LinkPort(std::string name, std::span<std::byte> buffer, uint32_t session_group,
           const Doorbell& wanted);
  ~LinkPort();
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;

  // The usable channel to the node, or nullptr; then a new one is asked for, and comes by itself.
  // A broken channel is replaced when nothing is in flight on it any more.
  rdma::Channel* channel(NodeIndex node);

  // Calls `visit` with each channel that has something in flight, broken ones too.
  template <typename Visit>
  void for_each_busy_channel(Visit&& visit) {
    for (uint32_t i = 0; i < used_nodes_; ++i)
      if (Link& link = links_[i]; link.channel && link.in_flight > 0)
        visit(NodeIndex{static_cast<uint8_t>(i)}, *link.channel);
  }
  // Takes what has completed on all channels and calls `done` with each. Returns how many it were.
  template <typename Done>
  size_t take_completions(Done&& done) {
    std::array<rdma::Completion, 16> completions;
    size_t taken = 0;
    for_each_busy_channel([&](NodeIndex node, rdma::Channel& channel) {
      const size_t got = channel.poll(completions);
      completed(node, static_cast<uint32_t>(got));
      taken += got;
      for (size_t i = 0; i < got; ++i) done(completions[i]);
    });
    return taken;
  }
  // The owner counts what it has in flight on each channel.
  void posted(NodeIndex node, uint32_t operations) {
    links_[node.value].in_flight += operations;
    if (used_nodes_ <= node.value) used_nodes_ = node.value + 1U;
  }
  void completed(NodeIndex node, uint32_t operations) {
    links_[node.value].in_flight -= operations;
  }

  // -- connector thread --
  bool wants(NodeIndex node) const {
    return links_[node.value].wanted.load(std::memory_order_acquire);
  }
  void deliver(NodeIndex node, std::unique_ptr<rdma::Channel> channel);
  // The broken channel that is to be replaced, to say why it broke and to destroy it away from the
  // fault path; null if there is none.
  std::unique_ptr<rdma::Channel> take_retired(NodeIndex node) {
    return std::unique_ptr<rdma::Channel>(
        links_[node.value].retired.exchange(nullptr, std::memory_order_acquire));
  }
  // From any thread: a channel to this node will be needed soon.
  void request(NodeIndex node) { links_[node.value].wanted.store(true, std::memory_order_release); }

  const std::string& name() const { return name_; }
  std::span<std::byte> buffer() const { return buffer_; }
  uint64_t session() const { return session_; }

 private:
  struct Link {
    std::unique_ptr<rdma::Channel> channel;        // owner thread
    uint32_t in_flight = 0;                        // owner thread
    std::atomic<rdma::Channel*> retired{nullptr};  // owner -> connector
    std::atomic<rdma::Channel*> mailbox{nullptr};  // connector -> owner
    std::atomic<bool> wanted{false};               // owner -> connector
  };

  const std::string name_;
  const std::span<std::byte> buffer_;
  const uint64_t session_;
  const Doorbell& doorbell_;
  uint32_t used_nodes_ = 0;  // owner thread: one more than the highest node posted to
  std::array<Link, kMaxNodes> links_;
};

}  // namespace farpage::pager
