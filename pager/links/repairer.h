// Repairer: the thread that fills replicas: it copies slabs from the replicas that have every page.
// It also mends pages that were found wrong, and looks for such ones (page_mender.h, scrubber.h).
//
// A slab is copied in ranges. In each one the write-back pauses (copy_gate.h): all else that is
// written meanwhile goes to the filling replica as well, so that the copy is complete when each
// range was copied once. What is read is checked: pages that are wrong at one replica come from
// another one. Where each has some, these are mended first; one that no replica has is copied as it
// is, and its checksum still says that it is wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "pager/links/copy_gate.h"
#include "pager/links/lease_map.h"
#include "pager/links/link_port.h"
#include "pager/links/node_directory.h"
#include "pager/links/node_table.h"
#include "pager/links/page_mender.h"
#include "pager/links/peer_state.h"
#include "pager/links/posting.h"
#include "pager/links/scrubber.h"
#include "pager/links/slab_transfer.h"
#include "pager/options.h"
#include "pager/stats.h"

namespace farpage::pager {

// One replica that is being filled. Threads: made by the borrower's; `copied` and `end` by any.
struct Fill {
  enum class End : uint8_t {
    kNone,
    kFilled,  // it is live
    kLost,    // it cannot be reached, or the node refuses it
  };
  Fill(const LeaseMap& map, SlabIndex of, const ReplicaLease& to, std::function<void()> ring)
      : leases(map), slab(of), replica(to), on_end(std::move(ring)) {}

  const LeaseMap& leases;
  const SlabIndex slab;
  const ReplicaLease& replica;
  const std::function<void()> on_end;  // on the repairer's thread; never waits
  std::atomic<uint32_t> copied{0};     // pages
  // Of the repairer's thread: after a failure it waits, and not for ever.
  Instant not_before{0};
  Instant moved_at{0};
  bool mending_tried = false;  // of what was wrong in the range that is next
  std::atomic<End> end{End::kNone};

  PageIndex first_page() const { return PageIndex{uint64_t{slab.value} * leases.pages_per_slab()}; }
};

// Threads: one of its own; all calls from any. All that it is made with outlives it; the port is
// its own.
class Repairer {
 public:
  static constexpr uint32_t kPiecePages = 64;  // of one READ and one WRITE, at most
  static constexpr uint32_t kPieces = 4;       // of a range
  static constexpr size_t kBufferBytes = size_t{kPieces} * kPiecePages * kPageBytes;

  static constexpr size_t kMaxWrong = 64;  // pages that wait to be mended

  struct Options {
    RepairRate rate;
    bool checksums = true;
    uint64_t scrub_bytes_per_second = 0;
    Nanoseconds give_up = Seconds(10);  // a replica, after its last range that could be copied
  };
  Repairer(const Options& options, CopyGate& gate, const NodeDirectory& nodes,
           const NodeTable<PeerState>& peers, LinkPort& port);
  ~Repairer();
  // Ends the thread. What is filling stays so.
  void stop();

  bool enabled() const { return options_.rate.enabled(); }
  void add(std::shared_ptr<Fill> fill);
  // What is written there is checked from time to time, until remove().
  void scrub(const LeaseMap& leases);
  // It is mended soon. More than kMaxWrong at a time are left to the next READs of them. Does not
  // wait for the thread.
  void report(const WrongPage& wrong);
  // Returns when none of that map's is being copied, mended or checked; none will be.
  void remove(const LeaseMap& leases);
  // No port has reached the node for some time.
  bool is_unreachable(NodeIndex node) const;

  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  // Adds what it has checked and mended.
  void count(PagerCounts& counts) const {
    counts.pages_mended += mender_.mended();
    counts.pages_scrubbed += scrubber_.pages_checked();
    counts.wrong_scrubbed += scrubber_.pages_wrong();
  }

 private:
  enum class Step : uint8_t { kToRead, kReading, kToWrite, kWriting, kDone, kWrong };
  struct Piece {
    Step step = Step::kToRead;
    PageIndex first;
    uint32_t pages = 0;
    uint32_t wrong = 0;                     // READs that brought wrong pages
    uint32_t source = 0;                    // where the next READ looks for a replica
    const ReplicaLease* replica = nullptr;  // of the operation in flight
  };

  void run();
  // Does one thing that is due: mends a page, copies a range, checks a piece. nullopt: it has done
  // one; else when the next one is due, and the mutex was not released.
  std::optional<Instant> serve() FARPAGE_REQUIRES(mutex_);
  std::optional<Instant> serve_fills(Instant now) FARPAGE_REQUIRES(mutex_);
  std::optional<Instant> serve_scrubber(Instant now) FARPAGE_REQUIRES(mutex_);
  // Releases the mutex meanwhile; remove() waits for the end.
  template <typename Work>
  void use(const LeaseMap& leases, Work work) FARPAGE_REQUIRES(mutex_);
  // Of those that are due, the one whose slab has the fewest live replicas; null: none is.
  std::shared_ptr<Fill> next(Instant now) FARPAGE_REQUIRES(mutex_);
  // The next range, if it can be read; after a failure the fill waits, or ends.
  bool advance(Fill& fill);
  bool copy_range(Fill& fill);
  bool copy_pieces(const Fill& fill);
  void adapt_pieces(bool copied);
  bool is_over(const Fill& fill) const;
  bool is_any(Step step) const;               // piece of the range
  void post(const Fill& fill, size_t index);  // if it can be
  // A live replica; nullptr: none.
  const ReplicaLease* source_of(const Fill& fill, const Piece& piece) const;
  void complete(const Fill& fill, const rdma::Completion& completion);
  // Of a piece that was read: it is copied, or read from another replica, or waits until what is
  // wrong was mended.
  Step step_after_read(const Fill& fill, Piece& piece);
  // Reports those.
  bool has_wrong_pages(const Fill& fill, const Piece& piece);
  Nanoseconds rest_after(Nanoseconds took, uint64_t bytes) const;

  const Options options_;
  CopyGate& gate_;
  const NodeDirectory& nodes_;
  const NodeTable<PeerState>& peers_;
  LinkPort& port_;
  Posting<1> posting_{port_};
  std::array<Piece, kPieces> pieces_;   // of the range
  uint32_t piece_pages_ = kPiecePages;  // less after ranges that could not be copied, until
  Instant short_until_{0};
  uint32_t failed_ranges_ = 0;  // in a row
  size_t in_flight_ = 0;
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<bool> stopping_{false};
  SlabTransfer transfer_{port_, stopping_};
  PageMender mender_{gate_, nodes_, transfer_};
  Scrubber scrubber_;
  Instant fill_due_{0};   // of the thread
  Instant scrub_due_{0};  // of the thread
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::shared_ptr<Fill>> fills_ FARPAGE_GUARDED_BY(mutex_);
  std::deque<WrongPage> wrong_ FARPAGE_GUARDED_BY(mutex_);
  const LeaseMap* used_ FARPAGE_GUARDED_BY(mutex_) = nullptr;  // by the thread
  std::jthread thread_;
};

}  // namespace farpage::pager
