// TrendDetector: detects the streams of each thread: walks through memory with a constant stride.
//
// A thread may follow several streams at once (an inner product reads two arrays), between random
// faults. So each thread has a few streams, and a fault belongs to the one that expected it, or
// that was last seen near it. In a stream, and over all faults of a thread for long strides, a
// majority of the last deltas gives the stride, as in Leap (Maruf and Chowdhury, USENIX ATC
// 2020, 4.1).
//
// Memory is prefetched in batches, and the page after each batch is not fetched: the fault at this
// marker shows that the batch was used, like PG_readahead in Linux's readahead. From the second
// batch on, the fault at a marker requests the batch after the next marker, so one batch is in
// flight while the other is used. The depth doubles from batch to batch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "pager/fault/cluster.h"

namespace farpage::pager {

// `pages` pages: first, first + stride, ..., without the one at index `gap`.
struct PrefetchPlan {
  PageIndex first;
  int64_t stride = 1;
  uint32_t pages = 0;
  uint32_t gap = UINT32_MAX;
};

// Threads: any. When two threads use one walker at the same time, neither waits, and the second one
// is not recorded.
// Memory of zeros is a detector that has seen nothing.
class TrendDetector {
 public:
  // Records a demand fault of `thread` on `page` and returns what to prefetch, if anything, in
  // batches of at most `max_depth` pages. `sequential`: the program has announced a sequential
  // walk.
  std::optional<PrefetchPlan> observe(uint32_t thread, PageIndex page, uint32_t max_depth,
                                      bool sequential = false);
  // These neighbours are fetched with the page of the thread's last fault: a walk faults next
  // behind them.
  void came_with(uint32_t thread, PageIndex page, const Cluster& cluster);

 private:
  static constexpr size_t kHistory = 8;
  // Two threads whose ids are equal modulo this reset each other's streams. Those of one pool have
  // ids in a row. A walker that no thread uses costs no memory.
  static constexpr size_t kThreads = 64;
  static constexpr size_t kStreams = 8;  // of a thread
  static constexpr uint32_t kFirstDepth = 4;
  static constexpr uint32_t kKeptLonger = 64;  // times, if its stride is known
  static constexpr int64_t kNear = 16;  // pages; a stream's next fault, before its stride is known
  static constexpr int64_t kMaxStride = 1024;
  static constexpr uint32_t kScatteredDepth = 8;  // where each page needs its own READ
  static constexpr int64_t kNone = -1;

  // The last deltas, and the one that more than half of them are.
  struct Deltas {
    std::array<int32_t, kHistory> values{};
    uint8_t next = 0;
    uint8_t filled = 0;

    void add(int64_t delta);
    int64_t majority() const;  // 0: none
  };
  struct Stream {
    int64_t last = kNone;         // kNone: not in use
    int64_t marker = kNone;       // the fault that is expected when the batch is used up
    int64_t next_marker = kNone;  // after the following batch, if that is in flight
    int64_t stride = 0;           // 0: not known
    uint16_t depth = 0;
    uint8_t below = 0, above = 0;  // pages next to `last` that came with it
    uint32_t used = 0;             // when; the least recent one is given up
    Deltas deltas;
  };
  struct Walker {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    uint32_t thread = 0;
    bool known = false;
    uint32_t clock = 0;
    int64_t last = 0;  // of all streams, for strides beyond kNear
    Deltas deltas;
    std::array<Stream, kStreams> streams{};
  };

  // The walker of the thread, if no other thread uses it; busy then.
  Walker* enter(uint32_t thread);
  static std::optional<PrefetchPlan> observe(Walker& walker, int64_t at, uint32_t max_depth,
                                             bool sequential);
  // The stream that this fault belongs to, with its stride; a new one if none is near.
  static Stream& follow(Walker& walker, int64_t at);
  static Stream* expecting(Walker& walker, int64_t at);
  static Stream* nearest(Walker& walker, int64_t at);
  static Stream& begin(Walker& walker, int64_t at);
  static PrefetchPlan next_batch(Stream& stream, int64_t at, uint32_t first_depth,
                                 uint32_t max_depth);

  std::array<Walker, kThreads> walkers_{};
};

}  // namespace farpage::pager
