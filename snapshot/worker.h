// Worker: answers the faults of its sessions. One thread; a session belongs to one worker.
//
//   event read --> in a page of 2 MiB: the replayer
//              --> own page: zeros
//              --> zeros of the image
//              --> in the cache: placed
//              --> on its way for somebody else: asked again
//              --> READ, into the landing page of the fault --> checked --> cached, placed
//
// While nothing is in hand it sleeps in epoll. Unlike a fault worker of pager/fault/ it does not
// spin for the next fault: with several guests that took CPU time from them, and won nothing.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/fd.h"
#include "base/histogram.h"
#include "base/loop_gap.h"
#include "base/mutex.h"
#include "image/image_links.h"
#include "image/page_reads.h"
#include "snapshot/page_cache.h"
#include "snapshot/session.h"

namespace farpage::snapshot {

// What all threads that serve share. All of it outlives them.
struct Serving {
  Serving(PageCache& cache_of_all, image::ImageLinks& links_of_all,
          const image::ReadOptions& read_options, bool yields)
      : cache(cache_of_all),
        links(links_of_all),
        reads(read_options),
        can_poison(uffd::GuestMemory::kernel_can_poison()),
        spins(yields) {}

  PageCache& cache;
  image::ImageLinks& links;
  const image::ReadOptions reads;
  image::ReadCounts read_counts;
  const bool can_poison;
  const bool spins;  // yields while a READ is on its way, before it sleeps (rdma::PollMode)
  // Takes over a fault of a 2 MiB page, which begins at `page`.
  std::function<void(std::shared_ptr<Session> session, uint32_t page)> demand_huge_page;
  // Faults in hand: whoever places pages ahead lets them pass.
  std::atomic<uint32_t> faults_in_hand{0};
  Histogram fault_ns;  // event read -> placed, of those that are of the image
};

// The memory was unmapped meanwhile, and nobody waits any more. Or it is of a kind that this pager
// does not serve, whatever the VMM has said: then the woken thread comes again, and again.
void refuse_page(Session& session, uint64_t address);
// The page there is lost, or there is none: who waits gets SIGBUS.
void end_in_sigbus(const Serving& serving, Session& session, uint64_t address);

inline constexpr size_t kMaxSessions = 1024;  // of one worker

// Threads: its own; add() from any. No allocation, no lock but those of the cache, and no log on
// the path of a fault that succeeds. Invariants:
//  1. a fault that was read ends: placed, zeros, or poisoned, within the deadline of a READ;
//  2. bytes that do not have their checksum are never placed.
class Worker {
 public:
  static constexpr size_t kBufferBytes = image::PageReads::kReads << kPageShift;

  // `on_end` is called once for each session, on the worker's thread, when its process has ended
  // and nothing of it is in hand. The port has kBufferBytes.
  // `note` is the thread's own, in memory that survives this process.
  static Result<std::unique_ptr<Worker>> create(
      Serving& serving, pager::LinkPort& port, PlacingNote& note,
      std::function<void(std::shared_ptr<Session>)> on_end);
  ~Worker();

  // kExhausted: it has kMaxSessions.
  Status add(std::shared_ptr<Session> session);
  size_t sessions() const { return count_.load(std::memory_order_relaxed); }

 private:
  enum class Step : uint8_t {
    kFree,
    kLookup,   // asks the cache
    kReading,  // into its landing page
    kPlace,    // from its landing page
  };
  struct Fault {
    Step step = Step::kFree;
    bool is_write = false;
    bool has_frame = false;  // that it has claimed
    bool waited = false;     // for the READ of somebody else
    std::shared_ptr<Session> session;
    uint64_t address = 0;
    uint64_t page = 0;
    PageCache::Frame frame = 0;
    Instant since{0};
    Instant not_before{0};
  };
  // A fault for which no place in faults_ was free.
  struct Waiting {
    std::shared_ptr<Session> session;
    uffd::GuestMemory::Fault event;
    Instant since{0};
  };
  struct Place {
    std::shared_ptr<Session> session;
    uint32_t in_hand = 0;
    bool ending = false;
  };

  Worker(Serving& serving, pager::LinkPort& port, PlacingNote& note,
         std::function<void(std::shared_ptr<Session>)> on_end, Doorbell bell, Fd epoll);
  void run();
  bool take_inbox();
  // Events of sessions and ends of processes. `timeout` as epoll_pwait2.
  bool look(Nanoseconds timeout);
  bool read_events(size_t place);
  void end(size_t place);
  void begin(const std::shared_ptr<Session>& session, const uffd::GuestMemory::Fault& event,
             Instant since);
  void begin_waiting();
  bool go_on();
  bool step(size_t index);
  bool look_up(Fault& fault, size_t index);
  void arrived(const image::PageReads::Done& done);
  // False: the kernel refused for now, or it is the guest's own meanwhile.
  bool place_page(Fault& fault, std::span<const std::byte> bytes);
  std::optional<uffd::Outcome> copy(Fault& fault, std::span<const std::byte> bytes);
  bool place_zeros(Session& session, uint64_t address, uint64_t page, bool is_write);
  void lose(Fault& fault);
  void release(Fault& fault);
  std::span<std::byte> landing(size_t index) const {
    return port_.buffer().subspan(index << kPageShift, kPageBytes);
  }

  Serving& serving_;
  pager::LinkPort& port_;
  PlacingNote& note_;
  const std::function<void(std::shared_ptr<Session>)> on_end_;
  const Doorbell bell_;
  const Fd epoll_;
  image::PageReads reads_;
  const image::PageReads::OnDone on_arrived_;
  std::array<Fault, image::PageReads::kReads> faults_;
  // The oldest first. While a guest's event is unread nothing can be placed in its memory, so
  // events are read however many faults are in hand.
  std::deque<Waiting> waiting_;
  LoopGap gap_;
  size_t busy_ = 0;
  std::vector<Place> places_;
  std::atomic<size_t> count_{0};
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<std::shared_ptr<Session>> inbox_ FARPAGE_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace farpage::snapshot
