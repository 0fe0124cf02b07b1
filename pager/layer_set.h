// LayerSet: the layers that one pager has created, and the choice of the layer for a write-back.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "pager/layer.h"

namespace farpage::pager {

// Threads: want() and slabs() from any; open() before the pager's threads start; the rest from the
// thread that evicts.
class LayerSet {
 public:
  // One per version of a page that living children can read, plus one: enough for a process that
  // modifies everything between the forks of that many children.
  static constexpr size_t kMaxOwn = 64;

  // All outlive it. `owner`: of the layers that will be made here.
  LayerSet(Member& member, const PagerOptions& options, coordinator::Client& client,
           LayerOwner& owner)
      : member_(member), options_(options), client_(client), owner_(owner) {}
  LayerSet(const LayerSet&) = delete;
  LayerSet& operator=(const LayerSet&) = delete;

  // No layer calls the owner any more. Layers continue to exist while another process holds them.
  void disown();
  // The first layer, with its first slab leased: what the first process of a family starts with.
  Status open(Milliseconds patience) { return add(patience); }

  // A page was used for the first time, and will need a slot for its write-back.
  void want(PageIndex page) {
    if (count_.load(std::memory_order_acquire) > 0) own_[0]->want(page);
  }
  // A layer in which no other process refers to the slot of the page, and whose slab is leased.
  // nullopt: none yet; what is missing has been requested. With the family's mutex held in
  // `family_lock`, which may be released and acquired again.
  std::optional<LayerId> writable(PageIndex page, std::unique_lock<std::mutex>& family_lock);

  uint64_t leased_slabs() const;
  bool is_first(const LeaseMap& leases) const {
    return count_.load(std::memory_order_acquire) > 0 && &own_[0]->leases() == &leases;
  }

 private:
  // Creates another layer; with the first slab leased if `patience` is given.
  Status add(std::optional<Milliseconds> patience);

  Member& member_;
  const PagerOptions& options_;
  coordinator::Client& client_;
  LayerOwner& owner_;
  std::mutex mutex_;                                 // held while a layer is added
  bool closed_ = false;                              // guarded by mutex_
  std::array<std::shared_ptr<Layer>, kMaxOwn> own_;  // [0, count_) do not change any more
  std::atomic<size_t> count_{0};
  bool full_ = false;  // already logged
};

}  // namespace farpage::pager
