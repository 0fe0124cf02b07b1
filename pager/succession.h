// Succession: what an engine leaves to the next one when its process is killed at any moment.
//
// Page words, pins, replicas and checksums are in memory that survives, and are written where they
// always are. Regions, nodes and targets change seldom: each is a named value of the StateStore,
// written before the change is used. All else is made anew, because a wrong value of it costs time
// and no byte: budgets (counted again), ages, hints, compressed copies, statistics, channels. See
// "The engine may die" in design-notes, and adr/0014.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/state_store.h"
#include "coordinator/api.h"
#include "pager/pages/page_state.h"

namespace farpage::pager {

// Of the form of all that is kept, here and in serve/served_state.h, also of memory that is used in
// place (LeaseMap, SlotChecksums, PageTable, PinMap, ExtentMap): a build with another number cannot
// go on with it.
inline constexpr uint64_t kStateVersion = 5;

// A backing region. Its replicas are in the memory that leases_name() names, the checksums of its
// slots in that of checksums_name().
struct RegionRecord {
  uint64_t group = 0;  // of processes
  BackingId id;        // in that group
  uint64_t pages = 0;
  uint64_t slab_bytes = 0;
  std::string name;
  std::optional<coordinator::RegionInfo> info;  // what the coordinator made; nothing yet
};

// A target. Its page words are in the memory that table_name(table) names.
struct TargetRecord {
  uint64_t group = 0;
  uint64_t table = 0;
  uint64_t pages = 0;
  std::vector<uint64_t> regions;  // that may store pages of it
  std::vector<uint64_t> own;      // those of them that it has made
  bool forking = false;           // between begin_fork() and end_fork()
  uint64_t snapshot = 0;          // of the fork: a table; 0: it needs none
};

// Threads: any. The store outlives it.
class Succession {
 public:
  // Without a store nothing is kept, and memory is private. `part`: a prefix of the names, where
  // one store has what several leave.
  static Result<Succession> create(StateStore* store, const std::string& part = "");
  Succession(Succession&&) = default;

  // Never the same twice, in this process and its predecessors.
  uint64_t next_number() const { return numbers().fetch_add(1) + 1; }

  // Memory that a successor finds under the same name.
  Result<Mapping> memory(const std::string& name, size_t bytes) const;
  std::vector<StateStore::Part> used_parts(const std::string& name) const;
  void drop_memory(const std::string& name) const;
  static std::string table_name(uint64_t table) { return "table/" + std::to_string(table); }
  static std::string pins_name(uint64_t target) { return "pins/" + std::to_string(target); }
  static std::string leases_name(uint64_t region) { return "leases/" + std::to_string(region); }
  static std::string checksums_name(uint64_t region) {
    return "checksums/" + std::to_string(region);
  }

  // The predecessor's, or `session_group`, which is kept.
  Result<uint32_t> session_group(uint32_t session_group) const;
  // The number under which the channels of a port write: the predecessor's, whose late WRITEs a
  // channel of the same session fences; or a new one, which is kept.
  Result<uint64_t> session(const std::string& port, uint32_t session_group) const;

  Status put_node(uint16_t index, const coordinator::NodeInfo& node) const;
  Result<std::vector<coordinator::NodeInfo>> nodes() const;  // by index

  Status put_region(uint64_t number, const RegionRecord& region) const;
  void erase_region(uint64_t number) const;
  Result<std::map<uint64_t, RegionRecord>> regions() const;

  Status put_target(uint64_t number, const TargetRecord& target) const;
  void erase_target(uint64_t number) const;
  Result<std::map<uint64_t, TargetRecord>> targets() const;

 private:
  Succession(StateStore* store, std::string part, Mapping numbers)
      : store_(store), part_(std::move(part)), numbers_(std::move(numbers)) {}
  std::atomic<uint64_t>& numbers() const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(numbers_.data());
  }

  StateStore* store_;
  std::string part_;
  Mapping numbers_;
};

// The record of one target, written before each change is used.
//
// Threads: any. The succession outlives it.
class TargetKeeper {
 public:
  TargetKeeper(const Succession& succession, uint64_t number)
      : succession_(succession), number_(number) {}

  uint64_t number() const { return number_; }
  // The record is written already.
  void begin(TargetRecord record);
  // It has made another backing region.
  Status add_region(uint64_t region);
  // `snapshot`: TargetRecord::snapshot.
  Status begin_fork(uint64_t snapshot);
  Status end_fork();
  // The target has ended.
  void end();

 private:
  const Succession& succession_;
  const uint64_t number_;
  Mutex mutex_;
  TargetRecord record_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::pager
