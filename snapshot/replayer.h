// Replayer: places pages of images in guests before they ask: those of a recorded set, then, where
// that is wanted, all others. Several threads share the batches of a job.
//
// Pages of 2 MiB are placed here, also those that a guest waits for: each is a batch, which is put
// together from the pages of the image that it has, each with its check.
//
// Faults come first: a batch has at most 2 MiB, its READs are on channels of their own, and a
// thread yields between its steps while faults are in hand. Recorded sets come before all else.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "image/page_reads.h"
#include "snapshot/page_cache.h"
#include "snapshot/session.h"
#include "snapshot/worker.h"

namespace farpage::snapshot {

// Threads: one for each port; add() from any.
class Replayer {
 public:
  static constexpr size_t kBatchPages = (size_t{2} << 20) >> kPageShift;
  static constexpr size_t kBufferBytes = kBatchPages << kPageShift;
  static constexpr uint32_t kPlacePages = 64;  // by one call of the kernel
  // So many in a row are placed from the cache; a call for fewer costs more than copying them.
  static constexpr size_t kFewestFromCache = 4;

  // Each port has kBufferBytes. A note for each, in memory that survives this process.
  static Result<std::unique_ptr<Replayer>> create(Serving& serving,
                                                  const std::vector<pager::LinkPort*>& ports,
                                                  std::span<PlacingNote> notes);
  ~Replayer();

  enum class Urgency : uint8_t { kNow, kSoon, kWhenIdle };
  // The pages, in this order, as far as they are not the guest's own by then. kNow: a fault of one
  // page of 2 MiB, which is answered in any case. kWhenIdle: behind every job that is not.
  void add(std::shared_ptr<Session> session, std::vector<uint32_t> pages, Urgency urgency);

 private:
  struct Job {
    std::shared_ptr<Session> session;
    std::vector<uint32_t> pages;
    size_t next = 0;
    Urgency urgency = Urgency::kSoon;
    Instant since{0};
    // Pages of batches that are not done. Shared with the threads that have the last batches.
    std::shared_ptr<std::atomic<size_t>> left;
  };
  // What one thread works on.
  struct Batch {
    std::shared_ptr<Session> session;
    Urgency urgency = Urgency::kSoon;
    Instant since{0};
    std::shared_ptr<std::atomic<size_t>> left;
    PlacingNote* note = nullptr;              // the thread's
    size_t taken = 0;                         // of the job
    std::array<uint32_t, kBatchPages> pages;  // ascending
    size_t count = 0;
    std::array<bool, kBatchPages> here;
    std::array<bool, kBatchPages> coming;  // for somebody else
    std::array<bool, kBatchPages> claimed;
    std::array<bool, kBatchPages> held;  // `frames` has the page; else the port's buffer has it
    std::array<PageCache::Frame, kBatchPages> frames;
  };

  Replayer(Serving& serving, const std::vector<pager::LinkPort*>& ports,
           std::span<PlacingNote> notes, Mapping zeros);
  void run(pager::LinkPort& port, PlacingNote& note);
  bool take(Batch& batch);
  // One page of 2 MiB.
  void serve_huge_page(Batch& batch, image::PageReads& reads);
  // False: it is lost.
  bool assemble(Batch& batch, image::PageReads& reads);
  void place_huge_page(Batch& batch, std::span<const std::byte> bytes);
  void placed_huge_page(const Batch& batch) const;
  void lose_huge_page(const Batch& batch) const;
  void leave_out(Batch& batch) const;
  void finish(Batch& batch) const;
  void fetch(Batch& batch, image::PageReads& reads);
  void ask(Batch& batch, size_t at);
  void start_reads(Batch& batch, const std::array<bool, kBatchPages>& missing,
                   image::PageReads& reads);
  void await_others(Batch& batch, image::PageReads& reads);
  // Copies the held pages of runs of fewer than `fewest` neighbouring frames into the buffer.
  void copy_held(Batch& batch, pager::LinkPort& port, size_t fewest);
  void let_go(Batch& batch);
  std::span<const std::byte> source_of(const Batch& batch, pager::LinkPort& port, size_t at,
                                       size_t pages) const;
  // Whether the bytes of `at` lie behind those of the page before it.
  bool follows(const Batch& batch, pager::LinkPort& port, size_t at) const;
  void place(Batch& batch, pager::LinkPort& port);
  // Places pages [first, first + count) of the batch, which lie together in the guest.
  void place_run(Batch& batch, pager::LinkPort& port, size_t first, size_t count);
  void let_faults_pass() const;
  static std::span<std::byte> bytes_of(pager::LinkPort& port, size_t at, size_t pages = 1) {
    return port.buffer().subspan(at << kPageShift, pages << kPageShift);
  }

  Serving& serving_;
  const Mapping zeros_;  // of 2 MiB; never written
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Job> demands_ FARPAGE_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ FARPAGE_GUARDED_BY(mutex_);
  std::deque<Job> idle_jobs_ FARPAGE_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;
};

}  // namespace farpage::snapshot
