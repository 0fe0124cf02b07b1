// Node: one memory node. Lends slabs, tells the coordinator that it lives, and leaves in good
// order.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "node/agent.h"
#include "node/lender.h"
#include "node/report.h"
#include "node/slab_pool.h"
#include "rdma/memory_host.h"

namespace farpage::node {

struct NodeOptions {
  NodeId id;
  AgentOptions agent;
  // The host that the coordinator finds the agent under; empty: agent.host.
  std::string advertise_host;
  Milliseconds heartbeat_interval{1000};
  // Between attempts to join; doubles up to the second one.
  Milliseconds first_backoff{100};
  Milliseconds longest_backoff{5000};
  // The borrowers with a data session here, for the heartbeats; empty: none are reported.
  std::function<std::vector<uint32_t>()> session_groups;
  // Both on the node's own thread. on_joined: each time the coordinator took the node in.
  std::function<void(const coordinator::NodeInfo&)> on_joined;
  // The coordinator answers and refuses (token, a field, a name that is taken) before the node ever
  // joined: trying again would not help, and the node stops trying.
  std::function<void(const Error&)> on_refused;
};

// kJoining --joined--> kJoined --410--> kJoining
// kJoining --refused before the first join--> kRefused
// any of them --leave()--> kLeaving --> kLeft
enum class Membership : uint8_t { kJoining, kJoined, kRefused, kLeaving, kLeft };
std::string_view to_string(Membership membership);

// Threads: any; one thread of its own talks to the coordinator.
// Invariants:
//  1. A coordinator that is away changes nothing for borrowers: leases end by revoke or with the
//     node alone.
//  2. The incarnation is random and new for each Node, as its memory is.
class Node {
 public:
  // Starts to lend at once and to join in the background.
  static Result<std::unique_ptr<Node>> create(NodeOptions options, std::unique_ptr<SlabPool> pool,
                                              std::vector<std::unique_ptr<rdma::MemoryHost>> hosts,
                                              std::unique_ptr<coordinator::Client> client);
  // As after a power loss: the coordinator is told nothing, leases end now.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // No new leases; the coordinator is told; borrowers have `limit` to give their slabs back; then
  // the coordinator forgets the node. False when slabs were still lent at the end: their contents
  // are lost. Call it once.
  bool leave(Milliseconds limit);

  // What the agent lends through.
  Lender& lender() { return lender_; }

  NodeReport report() const;
  Membership membership() const;
  std::string agent_url() const;

 private:
  Node(NodeOptions options, std::unique_ptr<SlabPool> pool,
       std::vector<std::unique_ptr<rdma::MemoryHost>> hosts,
       std::unique_ptr<coordinator::Client> client);
  Status start();

  coordinator::NodeJoin join_message() const;
  void keep_membership();                        // the thread
  Milliseconds join_once(Milliseconds backoff);  // both return how long to sleep
  Milliseconds beat_once();
  void note_contact(const Status& contact);
  void set_membership(Membership membership);

  const NodeOptions options_;
  const uint64_t incarnation_;
  const std::unique_ptr<SlabPool> pool_;
  const std::vector<std::unique_ptr<rdma::MemoryHost>> hosts_;
  Lender lender_;
  const std::unique_ptr<coordinator::Client> client_;
  std::unique_ptr<Agent> agent_;  // constant after create()

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable changed_;
  Membership membership_ = Membership::kJoining;
  bool in_contact_ = false;  // the coordinator answered the latest call
  bool told_away_ = false;   // one line per absence
  bool stopping_ = false;

  bool ever_joined_ = false;  // thread_ only, until it is joined
  std::string refusal_said_;  // thread_ only: each reason is logged once

  std::thread thread_;
};

}  // namespace farpage::node
