// Family: the processes related by fork, whose pages are stored in each other's layers.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "pager/lease_map.h"
#include "pager/node_directory.h"
#include "pager/page_table.h"

namespace farpage::pager {

class Layer;
class Member;

// Threads: any. leases_of() without a lock; the list of members under mutex().
class Family {
 public:
  Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  NodeDirectory& nodes() { return nodes_; }

  // Of a layer that the caller's process holds.
  LeaseMap& leases_of(LayerId layer) const {
    return *layers_[layer.value].load(std::memory_order_acquire);
  }
  // kExhausted: kMaxLayers exist.
  Result<LayerId> add_layer(LeaseMap& leases);
  void remove_layer(LayerId layer);

  // Held while a slot is chosen to be overwritten, and while a process joins with its references.
  // At all other times, references to a slot can only decrease.
  std::mutex& mutex() const { return mutex_; }
  // With mutex() held: does a process other than `self` refer to the page's slot in the layer?
  bool refers_elsewhere(const Member& self, LayerId layer, PageIndex page) const;
  // Pages may be shared with another process.
  bool has_forked() const { return processes_.load(std::memory_order_relaxed) > 1; }

 private:
  friend class Member;
  // With mutex() held.
  void add(const Member& member);
  void remove(const Member& member);

  NodeDirectory nodes_;
  std::array<std::atomic<LeaseMap*>, kMaxLayers> layers_{};
  mutable std::mutex mutex_;
  std::vector<const Member*> members_;  // guarded by mutex_
  std::atomic<size_t> processes_{0};    // as many
};

// Member: one process of a family: its pages, and the layers that may store them. It exists before
// its pager; after a fork, the pager is created much later, or never.
//
// Threads: the table as PageTable says; layers() by one thread at a time.
class Member {
 public:
  // The first of a family.
  static Result<std::unique_ptr<Member>> create(uint64_t pages);
  // Copies the present references of `parent`; `word_of` converts the word of each used page. From
  // now on nothing that both refer to is overwritten.
  static Result<std::unique_ptr<Member>> copy_of(
      const Member& parent, const std::function<PageWord(PageIndex, PageWord)>& word_of);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const std::shared_ptr<Family>& family() const { return family_; }
  PageTable& table() { return table_; }
  const PageTable& table() const { return table_; }
  std::vector<std::shared_ptr<Layer>>& layers() { return layers_; }

 private:
  Member(std::shared_ptr<Family> family, PageTable table)
      : family_(std::move(family)), table_(std::move(table)) {}

  const std::shared_ptr<Family> family_;
  std::vector<std::shared_ptr<Layer>> layers_;
  PageTable table_;
};

}  // namespace farpage::pager
