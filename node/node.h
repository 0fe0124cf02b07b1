// Node: one memory node. Lends slabs, sends heartbeats to the coordinator, and leaves the cluster
// cleanly.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
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
  coordinator::Labels labels;
  std::string identity;  // coordinator::NodeJoin
  // The host name or address of the agent for the coordinator; empty: agent.host.
  std::string advertise_host;
  Milliseconds heartbeat_interval{1000};
  // Delay between join attempts; it doubles from the first value to the second.
  Milliseconds first_backoff{100};
  Milliseconds longest_backoff{5000};
  // Returns the borrowers with a data session here, for the heartbeats; empty: reports none.
  std::function<std::vector<uint32_t>()> session_groups;
  // Both callbacks run on the node's own thread. on_joined: after each successful join.
  std::function<void(const coordinator::NodeInfo&)> on_joined;
  // The coordinator refused the node (token, a field, a name that is taken) before its first join.
  // A retry would not help, so the node makes no further attempts.
  std::function<void(const Error&)> on_refused;
  // The coordinator has removed it, or has another process by this name, and nothing is lent here:
  // it makes no further attempts. On the node's own thread.
  std::function<void(const Error&)> on_removed;
};

// kJoining --joined--> kJoined --410--> kJoining
// kJoining --refused before the first join--> kRefused
// kJoining --removed, and nothing is lent--> kLeft
// any of them --leave()--> kLeaving --> kLeft
enum class Membership : uint8_t { kJoining, kJoined, kRefused, kLeaving, kLeft };
std::string_view to_string(Membership membership);

// Threads: any; one thread of its own talks to the coordinator.
// Invariants:
//  1. An unreachable coordinator changes nothing for borrowers: a lease ends only by revoke or with
//     the node.
//  2. The incarnation is random and new for each Node, as its memory is.
class Node {
 public:
  // Starts to lend at once and to join in the background.
  static Result<std::unique_ptr<Node>> create(NodeOptions options, std::unique_ptr<SlabPool> pool,
                                              std::vector<std::unique_ptr<rdma::MemoryHost>> hosts,
                                              std::unique_ptr<coordinator::Client> client);
  // Like a power loss: sends nothing to the coordinator and ends all leases at once.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Refuses new leases, drains the node at the coordinator, waits up to `limit` for borrowers to
  // release their slabs, then removes the node from the coordinator. False: slabs were still lent
  // at the end; their contents are lost. Call it once.
  bool leave(Milliseconds limit);

  // Used by the agent.
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
  void keep_membership();                        // body of thread_
  Milliseconds join_once(Milliseconds backoff);  // both return the time to sleep
  Milliseconds beat_once();
  void note_contact(const Status& contact);
  void tell_drain();
  void set_membership(Membership membership);

  const NodeOptions options_;
  const uint64_t incarnation_;
  const std::unique_ptr<SlabPool> pool_;
  const std::vector<std::unique_ptr<rdma::MemoryHost>> hosts_;
  Lender lender_;
  const std::unique_ptr<coordinator::Client> client_;
  std::unique_ptr<Agent> agent_;  // constant after create()

  mutable Mutex mutex_;
  ConditionVariable changed_;
  Membership membership_ FARPAGE_GUARDED_BY(mutex_) = Membership::kJoining;
  bool in_contact_ FARPAGE_GUARDED_BY(mutex_) = false;  // the coordinator answered the latest call
  bool told_away_ FARPAGE_GUARDED_BY(mutex_) = false;   // one log line per outage
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;

  // The coordinator is to be told (again) that this one leaves.
  std::atomic<bool> drain_due_{false};
  bool ever_joined_ = false;  // thread_ only, until it is joined
  std::string refusal_said_;  // thread_ only: each reason is logged once

  std::thread thread_;
};

}  // namespace farpage::node
