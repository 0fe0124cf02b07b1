// EngineCore: what the threads of one engine share, whichever target they work for.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "pager/evict/eviction_priority.h"
#include "pager/fault/target_set.h"
#include "pager/fork/event_readers.h"
#include "pager/links/connector.h"
#include "pager/links/copy_gate.h"
#include "pager/links/node_directory.h"
#include "pager/links/node_table.h"
#include "pager/links/page_mender.h"
#include "pager/links/peer_state.h"
#include "pager/options.h"
#include "pager/pages/pressure.h"
#include "pager/stats.h"
#include "pager/succession.h"

namespace farpage::pager {

// Threads: see each member. It outlives the threads and the targets.
struct EngineCore {
  const PagerOptions options;  // complete: the number of workers is known
  const Succession succession;
  const std::shared_ptr<NodeDirectory> nodes;
  NodeTable<PeerState> peers;
  TargetSet targets;

  LinkCounts link_counts;
  CopyGate copy_gate;
  // A READ has brought wrong bytes. Does not wait for who mends it. Empty: nobody does.
  std::function<void(const WrongPage&)> on_wrong_page;
  EventReaders event_readers;
  Pressure pressure;                   // the evictor's
  EvictionPriority eviction_priority;  // of the evictor's thread

  // Two steps: the evictor may be waiting for the end of a fault of its own (see evictor_thread).
  std::atomic<bool> stopping{false};          // of all but the fault workers
  std::atomic<bool> workers_stopping{false};  // the evictor has ended
  std::atomic<uint64_t> removals{0};          // targets whose removal has begun
  // Thread id of the evictor, as faults carry it. It reads the target's pages, and one that the
  // target has dropped meanwhile makes it fault like any other thread.
  std::atomic<uint32_t> evictor_thread{0};

  ConnectorParts connector_parts() {
    return {options.channel, *nodes, peers, link_counts, stopping};
  }

  Nanoseconds unreachable_for(NodeIndex node) const { return peers[node].unreachable_for(); }
};

}  // namespace farpage::pager
