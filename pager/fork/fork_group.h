// ForkGroup: the processes related by fork, whose pages are stored in each other's backing regions.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_directory.h"
#include "pager/pages/page_table.h"

namespace farpage::pager {

class BackingRegion;
class ProcessImage;

// Threads: any. leases_of() without a lock; the list of process images under mutex().
class ForkGroup {
 public:
  static Result<std::shared_ptr<ForkGroup>> create(std::shared_ptr<NodeDirectory> nodes);
  ForkGroup(const ForkGroup&) = delete;
  ForkGroup& operator=(const ForkGroup&) = delete;

  NodeDirectory& nodes() { return *nodes_; }

  // Of a backing region that the caller's process holds.
  LeaseMap& leases_of(BackingId backing_region) const {
    return *backing_regions()[backing_region.value].load(std::memory_order_acquire);
  }
  // kExhausted: kMaxBackingRegions exist.
  Result<BackingId> add_backing_region(LeaseMap& leases);
  void remove_backing_region(BackingId backing_region);

  // Held while a slot is chosen to be overwritten, and while a process joins with its references.
  // At all other times, references to a slot can only decrease.
  Mutex& mutex() const FARPAGE_RETURNS_MUTEX(mutex_) { return mutex_; }
  // Does a process other than `self` refer to the page's slot in the backing region?
  bool refers_elsewhere(const ProcessImage& self, BackingId backing_region, PageIndex page) const
      FARPAGE_REQUIRES(mutex_);
  // Pages may be shared with another process.
  bool has_forked() const { return processes_.load(std::memory_order_relaxed) > 1; }
  uint64_t number() const { return reinterpret_cast<uintptr_t>(this); }  // of no other group

 private:
  friend class ProcessImage;
  using LeaseMapPointer = std::atomic<LeaseMap*>;

  ForkGroup(std::shared_ptr<NodeDirectory> nodes, Mapping backing_region_memory)
      : nodes_(std::move(nodes)), backing_region_memory_(std::move(backing_region_memory)) {}
  LeaseMapPointer* backing_regions() const {
    return reinterpret_cast<LeaseMapPointer*>(backing_region_memory_.data());
  }
  void add(const ProcessImage& image) FARPAGE_REQUIRES(mutex_);
  void remove(const ProcessImage& image) FARPAGE_REQUIRES(mutex_);

  const std::shared_ptr<NodeDirectory> nodes_;
  // LeaseMapPointer of each; zeroed: none. Most groups have one, and touch one page of it.
  Mapping backing_region_memory_;
  mutable Mutex mutex_;
  std::vector<const ProcessImage*> images_ FARPAGE_GUARDED_BY(mutex_);
  std::atomic<size_t> processes_{0};  // as many
};

// ProcessImage: one process of a fork group: its pages, and the backing regions that may store
// them. It exists before its pager; after a fork, the pager is created much later, or never.
//
// Threads: the table as PageTable says; backing regions() by one thread at a time.
class ProcessImage {
 public:
  // The first of a fork group. `nodes`: of the engine.
  static Result<std::unique_ptr<ProcessImage>> create(uint64_t pages,
                                                      std::shared_ptr<NodeDirectory> nodes);
  // Copies the present references of `parent`; `word_of` converts the word of each used page. From
  // now on nothing that both refer to is overwritten.
  static Result<std::unique_ptr<ProcessImage>> copy_of(
      const ProcessImage& parent, const std::function<PageWord(PageIndex, PageWord)>& word_of);
  ~ProcessImage();
  ProcessImage(const ProcessImage&) = delete;
  ProcessImage& operator=(const ProcessImage&) = delete;

  const std::shared_ptr<ForkGroup>& fork_group() const { return fork_group_; }
  PageTable& table() { return table_; }
  const PageTable& table() const { return table_; }
  std::vector<std::shared_ptr<BackingRegion>>& backing_regions() { return backing_regions_; }

 private:
  ProcessImage(std::shared_ptr<ForkGroup> fork_group, PageTable table)
      : fork_group_(std::move(fork_group)), table_(std::move(table)) {}

  const std::shared_ptr<ForkGroup> fork_group_;
  std::vector<std::shared_ptr<BackingRegion>> backing_regions_;
  PageTable table_;
};

}  // namespace farpage::pager
