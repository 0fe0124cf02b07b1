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
#include "pager/succession.h"

namespace farpage::pager {

class BackingRegion;
class ProcessImage;

// Threads: any. leases_of() without a lock; the list of process images under mutex().
class ForkGroup {
 public:
  // `number`: of no other group, in this process and its predecessors.
  static Result<std::shared_ptr<ForkGroup>> create(std::shared_ptr<NodeDirectory> nodes,
                                                   uint64_t number);
  ForkGroup(const ForkGroup&) = delete;
  ForkGroup& operator=(const ForkGroup&) = delete;

  NodeDirectory& nodes() { return *nodes_; }

  // Of a backing region that the caller's process holds.
  LeaseMap& leases_of(BackingId backing_region) const {
    return *backing_regions()[backing_region.value].load(std::memory_order_acquire);
  }
  // kExhausted: kMaxBackingRegions exist.
  Result<BackingId> add_backing_region(LeaseMap& leases);
  // Under the number that it had in a dead process.
  void restore_backing_region(BackingId backing_region, LeaseMap& leases);
  void remove_backing_region(BackingId backing_region);

  // Held while a slot is chosen to be overwritten, and while a process joins with its references.
  // At all other times, references to a slot can only decrease.
  Mutex& mutex() const FARPAGE_RETURNS_MUTEX(mutex_) { return mutex_; }
  // Does a process other than `self` refer to the page's slot in the backing region?
  bool refers_elsewhere(const ProcessImage& self, BackingId backing_region, PageIndex page) const
      FARPAGE_REQUIRES(mutex_);
  // Pages may be shared with another process.
  bool has_forked() const { return processes_.load(std::memory_order_relaxed) > 1; }
  uint64_t number() const { return number_; }

 private:
  friend class ProcessImage;
  using LeaseMapPointer = std::atomic<LeaseMap*>;

  ForkGroup(std::shared_ptr<NodeDirectory> nodes, uint64_t number, Mapping backing_region_memory)
      : nodes_(std::move(nodes)),
        number_(number),
        backing_region_memory_(std::move(backing_region_memory)) {}
  LeaseMapPointer* backing_regions() const {
    return reinterpret_cast<LeaseMapPointer*>(backing_region_memory_.data());
  }
  void add(const ProcessImage& image) FARPAGE_REQUIRES(mutex_);
  void remove(const ProcessImage& image) FARPAGE_REQUIRES(mutex_);

  const std::shared_ptr<NodeDirectory> nodes_;
  const uint64_t number_;
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
  // The first of a fork group. Nodes and succession: of the engine, which outlives it.
  static Result<std::unique_ptr<ProcessImage>> create(uint64_t pages,
                                                      std::shared_ptr<NodeDirectory> nodes,
                                                      const Succession& succession);
  // As a dead process has left it.
  static Result<std::unique_ptr<ProcessImage>> restore(
      const TargetRecord& record, std::shared_ptr<ForkGroup> fork_group,
      std::vector<std::shared_ptr<BackingRegion>> backing_regions, const Succession& succession);
  // Copies the present references of `parent`; `word_of` converts the word of each used page. From
  // now on nothing that both refer to is overwritten.
  // `succession`: null for an image that no process will have.
  static Result<std::unique_ptr<ProcessImage>> copy_of(
      const ProcessImage& parent, const std::function<PageWord(PageIndex, PageWord)>& word_of,
      const Succession* succession = nullptr);
  ~ProcessImage();
  ProcessImage(const ProcessImage&) = delete;
  ProcessImage& operator=(const ProcessImage&) = delete;

  const std::shared_ptr<ForkGroup>& fork_group() const { return fork_group_; }
  PageTable& table() { return table_; }
  const PageTable& table() const { return table_; }
  std::vector<std::shared_ptr<BackingRegion>>& backing_regions() { return backing_regions_; }
  // For the record of the target that has it.
  TargetRecord record() const;
  uint64_t table_number() const { return kept_.table; }

 private:
  // Where the words are kept for a successor.
  struct Kept {
    const Succession* succession = nullptr;  // null: nowhere
    uint64_t table = 0;
  };
  static Result<PageTable> make_table(const Kept& kept, uint64_t pages);
  ProcessImage(std::shared_ptr<ForkGroup> fork_group, PageTable table, Kept kept)
      : fork_group_(std::move(fork_group)), table_(std::move(table)), kept_(kept) {}
  void join();

  const std::shared_ptr<ForkGroup> fork_group_;
  std::vector<std::shared_ptr<BackingRegion>> backing_regions_;
  PageTable table_;
  const Kept kept_;
};

}  // namespace farpage::pager
