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
#include "pager/node_table.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Threads: the connector thread calls wants(), deliver() and take_retired(); all else but request()
// is the owner's. Invariant: a channel has exactly one owner: the connector until deliver(), then
// the port.
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

  // `buffer`: what READs and WRITEs of this thread land in and leave from. `wanted`: rung when a
  // channel is missing. Both outlive the port. `session_group`: of the pager's process.
  LinkPort(std::string name, std::span<std::byte> buffer, uint32_t session_group, Links links,
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
    // Backwards: a node that `visit` completes is replaced by one that was visited.
    for (size_t i = busy_count_; i > 0; --i) {
      const NodeIndex node = busy(i - 1);
      visit(node, *links_[node].channel);
    }
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
    if (operations == 0) return;
    Link& link = links_[node];
    if (link.in_flight == 0) {
      link.place = busy_count_++;
      busy(link.place) = node;
    }
    link.in_flight += operations;
  }
  // Inside for_each_busy_channel(): of the node that is visited.
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
  // The broken channel that is to be replaced, to say why it broke and to destroy it away from the
  // fault path; null if there is none.
  std::unique_ptr<rdma::Channel> take_retired(NodeIndex node) {
    return std::unique_ptr<rdma::Channel>(
        links_[node].retired.exchange(nullptr, std::memory_order_acquire));
  }
  // From any thread: a channel to this node will be needed soon.
  void request(NodeIndex node) { links_[node].wanted.store(true, std::memory_order_release); }

  const std::string& name() const { return name_; }
  std::span<std::byte> buffer() const { return buffer_; }
  uint64_t session() const { return session_; }

 private:
  NodeIndex& busy(size_t place) { return links_[NodeIndex{static_cast<uint16_t>(place)}].busy; }

  const std::string name_;
  const std::span<std::byte> buffer_;
  const uint64_t session_;
  const Doorbell& doorbell_;
  uint16_t busy_count_ = 0;       // owner thread: nodes with something in flight
  uint32_t connected_nodes_ = 0;  // connector thread: one more than the highest delivered to
  const Links links_;
};

}  // namespace farpage::pager
