// LinkPort: the channels of one owner (a thread, or the holder of the evictor's turn) for one
// purpose, one to each memory node. Replaces broken ones without making the owner wait for a
// connection.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/doorbell.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_table.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Threads: the connector thread calls wants(), deliver() and take_retired(), any thread request(),
// the owner all else. Invariant: a channel has exactly one owner: the connector until deliver(),
// then the port.
class LinkPort {
 public:
  // All zeros: there was never a channel. The port owns all three channels.
  struct Link {
    rdma::Channel* channel;               // owner thread
    uint32_t in_flight;                   // owner thread
    uint16_t place;                       // owner thread: in the list of busy nodes
    NodeIndex busy;                       // owner thread: entry of that list with this number
    std::atomic<rdma::Channel*> retired;  // owner -> connector
    std::atomic<rdma::Channel*> mailbox;  // connector -> owner
    std::atomic<bool> wanted;             // owner -> connector
  };
  using Links = NodeTable<Link>;

  // `buffer`: target of the owner's READs and source of its WRITEs. `wanted`: rung when a channel
  // is missing. Both outlive the port. `session`: of all its channels, one after the other.
  LinkPort(std::string name, std::span<std::byte> buffer, uint64_t session, Links links,
           const Doorbell& wanted, rdma::PackWrites pack_writes = rdma::PackWrites::kNever);
  ~LinkPort();
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;

  // The usable channel to the node, or nullptr: then the port requests one, which a later call
  // returns. A broken channel is replaced when nothing is in flight on it any more.
  rdma::Channel* channel(NodeIndex node);

  // Calls `visit` with each channel that has operations in flight, broken ones too.
  template <typename Visit>
  void for_each_busy_channel(Visit&& visit) {
    // Backwards: a node that `visit` completes is replaced by one already visited.
    for (size_t i = busy_count_; i > 0; --i) {
      const NodeIndex node = busy(i - 1);
      visit(node, *links_[node].channel);
    }
  }
  // Takes the completions of all channels and calls `done` with each. Returns their number.
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
    if (operations == 0) return;
    Link& link = links_[node];
    if (link.in_flight == 0) {
      link.place = busy_count_++;
      busy(link.place) = node;
    }
    link.in_flight += operations;
  }
  // Only inside for_each_busy_channel(), for the visited node.
  void completed(NodeIndex node, uint32_t operations) {
    if (operations == 0) return;
    Link& link = links_[node];
    link.in_flight -= operations;
    if (link.in_flight > 0) return;
    const NodeIndex last = busy(--busy_count_);
    busy(link.place) = last;
    links_[last].place = link.place;
  }

  // -- connector thread --
  bool wants(NodeIndex node) const { return links_[node].wanted.load(std::memory_order_acquire); }
  void deliver(NodeIndex node, std::unique_ptr<rdma::Channel> channel);
  // Takes the broken channel, to log why it broke and destroy it off the fault path; null if there
  // is none.
  std::unique_ptr<rdma::Channel> take_retired(NodeIndex node) {
    return std::unique_ptr<rdma::Channel>(
        links_[node].retired.exchange(nullptr, std::memory_order_acquire));
  }
  // From any thread: a channel to this node will be needed soon.
  void request(NodeIndex node) { links_[node].wanted.store(true, std::memory_order_release); }

  const std::string& name() const { return name_; }
  std::span<std::byte> buffer() const { return buffer_; }
  uint64_t session() const { return session_; }
  rdma::PackWrites pack_writes() const { return pack_writes_; }

 private:
  NodeIndex& busy(size_t place) { return links_[NodeIndex{static_cast<uint16_t>(place)}].busy; }

  const std::string name_;
  const std::span<std::byte> buffer_;
  const uint64_t session_;
  const Doorbell& doorbell_;
  const rdma::PackWrites pack_writes_;
  uint16_t busy_count_ = 0;       // owner thread: nodes with something in flight
  uint32_t connected_nodes_ = 0;  // connector thread: one more than the highest delivered to
  const Links links_;
};

}  // namespace farpage::pager
