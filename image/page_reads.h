// PageReads: the READs of one thread of pages of images, each checked when it comes. A READ that
// fails, or brings other bytes than the checksum promises, goes to the next replica.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/loop_gap.h"
#include "image/image.h"
#include "pager/links/link_port.h"
#include "pager/links/posting.h"

namespace farpage::image {

enum class ReadOutcome : uint8_t {
  kOk,    // the bytes are there, and are right
  kLost,  // no replica has them, or none answered before the deadline
};

// Any thread reads them.
struct ReadCounts {
  std::atomic<uint64_t> reads{0};  // that completed
  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> retries{0};      // at another replica, or again
  std::atomic<uint64_t> wrong_pages{0};  // that had another checksum
};

struct ReadOptions {
  Nanoseconds deadline = Milliseconds(5000);
  Nanoseconds operation_timeout = Milliseconds(1000);
};

// Threads: the owner of the port. No lock, no allocation and no log on the path of a READ that
// succeeds. Invariants:
//  1. each READ that was started ends once, within the deadline plus one operation timeout;
//  2. kOk: each page of it has its checksum.
class PageReads {
 public:
  static constexpr size_t kReads = 64;
  static constexpr uint32_t kMaxRunPages = 64;

  struct Done {
    uint64_t token = 0;
    ReadOutcome outcome = ReadOutcome::kOk;
    std::span<std::byte> bytes;
  };
  using OnDone = std::function<void(const Done&)>;

  PageReads(ImageLinks& links, pager::LinkPort& port, const ReadOptions& options,
            ReadCounts& counts);

  bool has_room() const { return busy_ < kReads; }
  size_t outstanding() const { return busy_; }
  pager::LinkPort& port() { return port_; }

  // Reads the pages of the run, whose first is `page`, into `landing`: a part of the port's buffer
  // that belongs to the READ until it is done. The image outlives it. `since`: when its deadline
  // has begun; it is tried once, however long ago that is.
  void start(const Image& image, uint64_t page, const StoredRun& run, std::span<std::byte> landing,
             uint64_t token, Instant since = SteadyClock::read());
  // Pages of the image's own region as they are, without a check, in the given replica of their
  // slab if that is not lost.
  void start_raw(const Image& image, uint32_t region_page, uint32_t pages, uint32_t replica,
                 std::span<std::byte> landing, uint64_t token);
  // From now on, READs with a check go to this replica of each slab, and to no other.
  void use_only(std::optional<uint32_t> replica) { only_ = replica; }

  // Posts, takes completions, and calls `done` for each READ that has ended; it may start others.
  // True: something moved.
  bool progress(const OnDone& done);
  // Waits briefly for a completion of the only channel in use, if it is the only one. False: there
  // is none to wait for.
  bool wait_a_little();
  // Until nothing is outstanding.
  void finish(const OnDone& done);

 private:
  enum class Step : uint8_t { kFree, kQueued, kOnWire, kArrived, kLost };
  static constexpr uint64_t kUnchecked = ~uint64_t{0};
  struct Read {
    Step step = Step::kFree;
    uint8_t tried = 0;  // replicas that failed in this round, as bits
    uint8_t wrong = 0;  // replicas that brought wrong bytes, as bits
    uint8_t place = 0;  // of the replica that is asked
    uint8_t preferred = 0;
    const Image* image = nullptr;
    uint64_t page = kUnchecked;
    StoredRun run;
    std::span<std::byte> landing;
    uint64_t token = 0;
    const pager::ReplicaLease* replica = nullptr;
    Instant since{0};
    Instant not_before{0};
  };

  void add(const Read& read);
  const pager::LeaseMap& leases_of(const Read& read) const {
    return *read.image->generations()[read.run.generation].leases;
  }
  std::optional<pager::Route> choose_replica(Read& read, const pager::SlabLease& lease);
  bool gather(size_t index);
  void post_gathered();
  void post_queued();
  void complete(const rdma::Completion& completion);
  void check(Read& read);
  void lose(Read& read, const char* why);
  void await_leases(Read& read);

  ImageLinks& links_;
  pager::LinkPort& port_;
  const ReadOptions options_;
  ReadCounts& counts_;
  std::array<Read, kReads> reads_{};
  pager::Posting<kReads> posting_{port_};
  LoopGap gap_;
  std::optional<uint32_t> only_;
  size_t busy_ = 0;
  size_t queued_ = 0;
  size_t ended_ = 0;  // not yet told
  uint64_t logged_ = 0;
};

}  // namespace farpage::image
