// BackingRegions: the backing regions that one pager has created, and the choice of the backing
// region for a write-back.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "pager/fork/backing_region.h"

namespace farpage::pager {

// Threads: want(), lacks_slab() and slabs() from any; open() before the pager's threads start; the
// rest from the thread that evicts.
class BackingRegions {
 public:
  // One per version of a page that living children can read, plus one: enough for a process that
  // modifies everything between the forks of that many children.
  static constexpr size_t kMaxOwn = 64;

  // All outlive it. `owner`: of the backing regions that will be made here.
  BackingRegions(ProcessImage& image, const PagerOptions& options, coordinator::Client& client,
                 BorrowerThread& borrower_thread, RegionOwner& owner, const Succession& succession,
                 TargetKeeper& keeper)
      : image_(image),
        options_(options),
        client_(client),
        borrower_thread_(borrower_thread),
        owner_(owner),
        succession_(succession),
        keeper_(keeper) {}
  BackingRegions(const BackingRegions&) = delete;
  BackingRegions& operator=(const BackingRegions&) = delete;

  // No backing region calls the owner any more. They continue to exist while another process
  // holds them.
  void disown();
  // The first backing region, with its first slab leased: what the first process of a fork group
  // starts with.
  Status open(Milliseconds patience) { return add(patience); }
  // Instead: those that the target had made in a dead process. The image has them.
  void take_over(BackingRegionList own);

  // A page was used for the first time, and will need a slot for its write-back.
  void want(PageIndex page) {
    if (count_.load(std::memory_order_acquire) > 0) own_[0]->want(page);
  }
  // A backing region in which no other process refers to the slot of the page, and whose slab is
  // leased. nullopt: none yet; what is missing has been requested. `group`: the image's; its mutex
  // may be released and acquired again.
  std::optional<BackingId> writable(PageIndex page, ForkGroup& group)
      FARPAGE_REQUIRES(group.mutex());

  uint64_t leased_slabs() const;
  // What writable() has asked for will not come soon: the coordinator has refused slabs, or does
  // not answer, or there are too many backing regions.
  bool refused() const;
  // A slab is wanted, and not leased.
  bool lacks_slab() const;
  bool is_first(const LeaseMap& leases) const {
    return count_.load(std::memory_order_acquire) > 0 && &own_[0]->leases() == &leases;
  }

 private:
  // Another process image may refer to it: one that was copied from ours after the backing region
  // was made. With the fork group's mutex held. Without this each page would cost a look at the
  // tables of all relatives.
  bool is_shared(size_t i) const {
    constexpr long kOurs = 2;  // own_ and our image
    return own_[i].use_count() > kOurs;
  }
  // Creates another backing region; with the first slab leased if `patience` is given.
  Status add(std::optional<Milliseconds> patience);

  ProcessImage& image_;
  const PagerOptions& options_;
  coordinator::Client& client_;
  BorrowerThread& borrower_thread_;
  RegionOwner& owner_;
  const Succession& succession_;
  TargetKeeper& keeper_;
  Mutex mutex_;  // held while a backing region is added
  bool closed_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::array<std::shared_ptr<BackingRegion>, kMaxOwn> own_;  // [0, count_) do not change any more
  std::atomic<size_t> count_{0};
  bool full_ = false;  // already logged
};

}  // namespace farpage::pager
