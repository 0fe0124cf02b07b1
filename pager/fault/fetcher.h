// Fetcher: the demand faults of one worker, from the READ to the woken thread.
#pragma once

#include <array>
#include <span>
#include <utility>

#include "base/mapping.h"
#include "pager/links/link_port.h"
#include "pager/links/posting.h"
#include "pager/target.h"

namespace farpage::pager {

// Threads: the worker that owns it. No allocation and no log on the path of a successful fault,
// and no lock but that of the pool of copies. Invariants:
//  1. a page that was given to start() is Fetching until it is Clean, Dirty, Lost or Empty;
//  2. that happens within the fault deadline plus one operation timeout, whatever the nodes do;
//  3. each fetch in flight has its own landing page.
class Fetcher {
 public:
  static constexpr size_t kFetches = 32;
  static constexpr size_t kBufferBytes = kFetches * kPageBytes;

  // The port's buffer begins with kBufferBytes for the landing pages. `worker`: its index.
  Fetcher(EngineCore& engine, LinkPort& port, uint32_t worker);

  bool has_room() const { return busy_ < kFetches; }
  size_t outstanding() const { return busy_; }

  // Fetches a page that the caller has moved to Fetching (with kFromRemote) and taken from the
  // budget, from its compressed copy if there is one. `word`: what it is now. `since`: when the
  // fault was read.
  void start(Target& target, PageIndex page, PageWord word, uffd::FaultKind kind, Instant since);

  // Posts what is to be posted, takes completions, installs. True: something moved.
  bool progress();
  // Since the last call: the kernel has refused to place a page until messages are read and the
  // threads that wait for that have gone on.
  bool take_refused() { return std::exchange(refused_, false); }
  // Waits briefly for the next completion, with the transport's wait().
  void wait_a_little();

  // Posts now what start() queued: one call for a whole batch of faults.
  void post_queued();
  // Lets go of every target that is being removed. A READ of it still arrives in its landing page.
  void leave_closing();

 private:
  enum class Step : uint8_t { kFree, kHasCopy, kQueued, kOnWire, kToInstall, kToPoison };
  struct Fetch {
    Step step = Step::kFree;
    uffd::FaultKind kind = uffd::FaultKind::kMissingRead;
    uint8_t tried_replicas = 0;  // bit set of places in the lease
    uint8_t place = 0;           // of `replica`
    bool from_copy = false;      // the bytes are those of a compressed copy
    Target* target = nullptr;    // null: it was removed while the READ was on the wire
    PageIndex page;
    PageWord word;
    const ReplicaLease* replica = nullptr;  // of the last READ
    Instant since{0};
    Instant posted{0};
    Instant not_before{0};
  };

  std::span<std::byte> bytes_of(size_t index) const {
    return port_.buffer().subspan(index * kPageBytes, kPageBytes);
  }
  // Chooses a replica that can be read now, and sets it in the fetch; nullopt: none at the moment.
  std::optional<Route> choose_replica(Fetch& fetch, const SlabLease& lease);
  bool gather(size_t index);
  void post_gathered();
  void complete(const rdma::Completion& completion);
  bool take_copy(Fetch& fetch);
  bool is_right(const Fetch& fetch) const;
  void install(Fetch& fetch, Instant now);  // `now`: for the figures
  bool is_too_late(Fetch& fetch, Instant looked, Nanoseconds longest) const;
  void give_up(Fetch& fetch, const char* why);
  void poison(Fetch& fetch);
  void release(Fetch& fetch);

  WorkerCounts& counts_of(const Fetch& fetch) const { return fetch.target->counts_of(worker_); }

  EngineCore& engine_;
  LinkPort& port_;
  const uint32_t worker_;
  std::array<Fetch, kFetches> fetches_{};
  Posting<kFetches> posting_{port_};  // of post_queued()
  bool refused_ = false;
  size_t busy_ = 0;
  size_t pending_ = 0;  // fetches that are neither free nor on the wire
};

}  // namespace farpage::pager
