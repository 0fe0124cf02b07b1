// SlabPool: the memory, or the room of a disk, that a node lends, divided into slabs, and the state
// of each slab.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/strong.h"
#include "node/slab_memory.h"
#include "rdma/memory_host.h"

namespace farpage::node {

// kFree --lend()--> kLeased --take_back()--> kScrubbing --scrubber--> kFree
// kFree --withdraw()--> kWithdrawn --add()--> kFree
enum class SlabState : uint8_t {
  kFree,
  kLeased,
  kScrubbing,
  kWithdrawn,  // a number without memory
};
std::string_view to_string(SlabState state);

inline constexpr uint32_t kMaxSlabs = 1U << 16;

struct SlabPoolOptions {
  uint64_t lend_bytes = 0;  // rounded down to slabs; at least one
  uint64_t slab_bytes = 0;  // power of two, coordinator::kMinSlabBytes .. kMaxSlabBytes
  bool hugepages = false;
  bool lazy = false;  // allocate page by page at the first write
  int numa_node = -1;
  std::string folder;   // not empty: slabs are files there
  bool pinned = false;  // a network card will register all of it: check the memlock limit
  // Generations start after this one. 0: the seconds since 2020, so that they also rise across node
  // restarts (the long-term lease rate of a slab is at most one per second).
  uint32_t generation_base = 0;
  // Called on the creating thread after each slab, as many gigabytes take a while. Return false to
  // stop: create() then fails with kUnavailable.
  std::function<bool(uint64_t ready_bytes, uint64_t total_bytes)> progress;
};

struct SlabCounts {
  uint32_t free = 0;
  uint32_t leased = 0;
  uint32_t scrubbing = 0;
};

// Threads: any. The pool's own thread scrubs.
// Invariants:
//  1. A slab is lent to one lease at a time, and the generation of each lease of a slab is higher
//     than all before it.
//  2. The memory of a lease is zero when it is lent, and is never that of an earlier lease: each
//     lease of a slab has its own memfd or file.
//  3. free + leased + scrubbing == slab_count(): withdrawn numbers are in no count.
//  4. The pages of an ended lease are freed before those for the next one are allocated: the pool
//     never holds more than capacity_bytes().
class SlabPool {
 public:
  // Allocates and (unless lazy) touches all the memory. Fails with kInvalid (names the option) or
  // kExhausted (memlock, huge pages, memory; names the remedy).
  static Result<std::unique_ptr<SlabPool>> create(const SlabPoolOptions& options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  struct Lent {
    rdma::SlabMemory memory;  // valid until take_back()
    Generation generation;
  };
  // Lends a free slab; waits up to `wait` for one that is being scrubbed.
  // kNotFound: no such slab. kConflict: leased. kUnavailable: still being scrubbed.
  Result<Lent> lend(uint32_t slab, Nanoseconds wait);

  // Ends a slab's lease and invalidates its memory; withdraw the slab from every host first. Does
  // nothing when that lease has already ended. kNotFound: no such slab. kConflict: the generation
  // is not the slab's current one.
  Status take_back(uint32_t slab, Generation generation);

  // Makes memory for these numbers; those that have some keep it. All or nothing. Takes as long as
  // the pages take. They are the next ones of `in_all`, for which there must be memory now.
  // kInvalid: a number beyond kMaxSlabs. kExhausted: too many, no memory, or not the right to pin
  // it; names the remedy.
  Status add(std::span<const uint32_t> slabs, uint64_t in_all);
  // Gives the memory of these slabs up; waits up to `wait` for those that are being scrubbed. Those
  // that are withdrawn already stay so, and numbers that it never had are left out. kInvalid: a
  // number beyond kMaxSlabs. kConflict: one is leased. kUnavailable: still being scrubbed. After a
  // failure nothing has changed.
  Status withdraw(std::span<const uint32_t> slabs, Nanoseconds wait);

  // The state and the generation of the latest lease (generation_base before the first).
  struct SlabStatus {
    SlabState state = SlabState::kFree;
    Generation generation;
  };
  Result<SlabStatus> status(uint32_t slab) const;
  SlabCounts counts() const;

  // What it can lend: the numbers below numbers(), without the withdrawn ones.
  struct Extent {
    uint32_t numbers = 0;
    std::vector<uint32_t> withdrawn;
    uint32_t slabs() const { return numbers - static_cast<uint32_t>(withdrawn.size()); }
  };
  Extent extent() const;
  uint32_t slab_count() const { return extent().slabs(); }
  bool is_in_files() const { return !memory_options_.folder.empty(); }
  uint64_t slab_bytes() const { return memory_options_.slab_bytes; }
  uint64_t capacity_bytes() const { return slab_count() * slab_bytes(); }

 private:
  struct Slab {
    OwnedSlabMemory memory;
    SlabState state = SlabState::kFree;
    Generation generation;
  };

  SlabPool(SlabMemoryOptions options, bool pinned, std::deque<Slab> slabs);
  void scrub_until_stopped();
  // Both run without the lock: the scrubber owns a slab while its state is kScrubbing.
  Result<OwnedSlabMemory> next_life(OwnedSlabMemory former);
  Status check_slab(uint32_t slab) const FARPAGE_REQUIRES(mutex_);
  // Those of `slabs` without memory.
  std::vector<uint32_t> missing(std::span<const uint32_t> slabs) const;

  const SlabMemoryOptions memory_options_;
  const bool pinned_;

  Mutex changing_;  // of add() and withdraw(), which may take long; taken before mutex_
  mutable Mutex mutex_;
  ConditionVariable scrubbed_;                         // a slab became free
  ConditionVariable work_;                             // queue_ or stopping_ changed
  std::deque<Slab> slabs_ FARPAGE_GUARDED_BY(mutex_);  // a slab stays where it is when more come
  std::deque<uint32_t> queue_ FARPAGE_GUARDED_BY(mutex_);  // slabs to scrub, at most slab_count()
  // Of the latest lease of any slab: no two leases of a node have the same one.
  Generation last_generation_ FARPAGE_GUARDED_BY(mutex_);
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;

  std::thread scrubber_;
};

}  // namespace farpage::node
