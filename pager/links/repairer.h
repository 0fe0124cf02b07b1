// Repairer: the thread that fills replicas: it copies slabs from the replicas that have every page.
//
// A slab is copied in ranges. In each one the write-back pauses (copy_gate.h): all else that is
// written meanwhile goes to the filling replica as well, so that the copy is complete when each
// range was copied once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "pager/links/copy_gate.h"
#include "pager/links/lease_map.h"
#include "pager/links/link_port.h"
#include "pager/links/node_directory.h"
#include "pager/links/node_table.h"
#include "pager/links/peer_state.h"
#include "pager/links/posting.h"
#include "pager/options.h"

namespace farpage::pager {

// One replica that is being filled. Threads: made by the borrower's; `copied` and `end` by any.
struct Fill {
  enum class End : uint8_t {
    kNone,
    kFilled,  // it is live
    kLost,    // it cannot be reached, or the node refuses it
  };
  const LeaseMap& leases;
  const SlabIndex slab;
  const ReplicaLease& replica;
  const std::function<void()> on_end;  // on the repairer's thread; never waits
  std::atomic<uint32_t> copied{0};     // pages
  // Of the repairer's thread: after a failure it waits, and not for ever.
  Instant not_before{0};
  Instant moved_at{0};
  std::atomic<End> end{End::kNone};

  PageIndex first_page() const { return PageIndex{uint64_t{slab.value} * leases.pages_per_slab()}; }
};

// Threads: one of its own; all calls from any. All that it is made with outlives it; the port is
// its own.
class Repairer {
 public:
  static constexpr uint32_t kPiecePages = 64;  // of one READ and one WRITE
  static constexpr uint32_t kPieces = 4;       // of a range
  static constexpr size_t kBufferBytes = size_t{kPieces} * kPiecePages * kPageBytes;

  Repairer(RepairRate rate, CopyGate& gate, const NodeDirectory& nodes,
           const NodeTable<PeerState>& peers, LinkPort& port);
  ~Repairer();
  // Ends the thread. What is filling stays so.
  void stop();

  bool enabled() const { return rate_.enabled(); }
  void add(std::shared_ptr<Fill> fill);
  // Returns when none of that map's is being copied; none will be.
  void remove(const LeaseMap& leases);
  // No port has reached the node for some time.
  bool is_unreachable(NodeIndex node) const;

  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  enum class Step : uint8_t { kToRead, kReading, kToWrite, kWriting, kDone };
  struct Piece {
    Step step = Step::kToRead;
    PageIndex first;
    uint32_t pages = 0;
    uint32_t source = 0;                    // where the next READ looks for a replica
    const ReplicaLease* replica = nullptr;  // of the operation in flight
  };

  void run();
  // Of those that are due, the one whose slab has the fewest live replicas; null: none is.
  std::shared_ptr<Fill> next(Instant now) FARPAGE_REQUIRES(mutex_);
  // The next range, if it can be read; after a failure the fill waits, or ends.
  bool advance(Fill& fill);
  bool copy_range(Fill& fill);
  bool copy_pieces(const Fill& fill);
  bool await_quiet(const Fill& fill, uint64_t closed_at) const;
  bool is_over(const Fill& fill) const;
  bool post(const Fill& fill, size_t index);
  // A live replica; nullptr: none.
  const ReplicaLease* source_of(const Fill& fill, const Piece& piece) const;
  void complete(const Fill& fill, const rdma::Completion& completion);
  Nanoseconds rest_after(Nanoseconds took, uint64_t bytes) const;

  const RepairRate rate_;
  CopyGate& gate_;
  const NodeDirectory& nodes_;
  const NodeTable<PeerState>& peers_;
  LinkPort& port_;
  Posting<1> posting_{port_};
  std::array<Piece, kPieces> pieces_;  // of the range
  size_t in_flight_ = 0;
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::shared_ptr<Fill>> fills_ FARPAGE_GUARDED_BY(mutex_);
  std::shared_ptr<Fill> served_ FARPAGE_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace farpage::pager
