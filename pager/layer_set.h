// LayerSet: the layers that one pager has made, and where a page that leaves is written to.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "pager/layer.h"

namespace farpage::pager {

// Threads: want() and slabs() from any; open() before the pager's threads start; the rest from
// whoever evicts.
class LayerSet {
 public:
  // As many as versions of one page can be read by living children, and one: enough for a process
  // that changes everything between the forks of this many children.
  static constexpr size_t kMaxOwn = 64;

  // All outlive it. `owner`: of the layers that will be made here.
  LayerSet(Member& member, const PagerOptions& options, coordinator::Client& client,
           LayerOwner& owner)
      : member_(member), options_(options), client_(client), owner_(owner) {}
  LayerSet(const LayerSet&) = delete;
  LayerSet& operator=(const LayerSet&) = delete;

  // No layer calls the owner any more. They live on while another process holds them.
  void disown();
  // The first layer, with its first slab leased: what the first process of a family starts with.
  Status open(Milliseconds patience) { return add(patience); }

  // A page was used for the first time, and will have to be written somewhere one day.
  void want(PageIndex page) {
    if (count_.load(std::memory_order_acquire) > 0) own_[0]->want(page);
  }
  // A layer whose slot of the page nobody but this process refers to, and whose slab is leased.
  // nullopt: none yet; what is missing has been asked for. With the family's mutex held in
  // `family_lock`, which may be let go and taken again.
  std::optional<LayerId> writable(PageIndex page, std::unique_lock<std::mutex>& family_lock);

  uint64_t leased_slabs() const;
  bool is_first(const LeaseMap& leases) const {
    return count_.load(std::memory_order_acquire) > 0 && &own_[0]->leases() == &leases;
  }

 private:
  // One layer more; with the first slab leased when there is `patience`.
  Status add(std::optional<Milliseconds> patience);

  Member& member_;
  const PagerOptions& options_;
  coordinator::Client& client_;
  LayerOwner& owner_;
  std::mutex mutex_;                                 // held while a layer is added
  bool closed_ = false;                              // guarded by mutex_
  std::array<std::shared_ptr<Layer>, kMaxOwn> own_;  // [0, count_) do not change any more
  std::atomic<size_t> count_{0};
  bool full_ = false;  // said so already
};

}  // namespace farpage::pager
