// Engine: the threads and channels that page for any number of address spaces of one host.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/state_store.h"
#include "coordinator/client.h"
#include "pager/fork/inheritance.h"
#include "pager/links/stored_pages.h"
#include "pager/options.h"
#include "pager/pager.h"
#include "rdma/slab_file.h"
#include "rdma/transport.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// What targets of one engine may have of their own.
struct TargetOptions {
  std::string name;  // of the region, for people
  uint64_t local_bytes = 0;
  ForkMode fork = ForkMode::kRefuse;
  // For a successor: of no other target of the engine and its predecessors.
  uint64_t number = 0;
};

// What a successor has to know of a target besides.
struct ResumeOptions : TargetOptions {
  size_t fork_children = 0;  // that have been adopted since begin_fork(), if it is forking
  bool agent_ready = true;   // false: a child whose agent_ready() is still to come
  // What it was given to Engine::restore() with; else null.
  std::shared_ptr<const StoredPages> stored;
};

// Threads (all of its own): `workers` fault workers, one evictor, one connector, one borrower,
// one repairer, one readahead. To each memory node there are at most
// 2 * workers + 2 channels, whatever the number of targets.
//
// Every method may be called from any other thread. The targets end before their engine.
class Engine {
 public:
  // Connects to nothing yet. The client and the transports outlive the engine; `transports` are
  // tried in their order. TargetOptions take the place of name, local_bytes and fork. `state`,
  // which outlives the engine: where it leaves what a successor needs if this process is killed;
  // null: nowhere. With the state of a dead predecessor it has that one's nodes and regions, and
  // resume() its targets. `file`, which outlives the engine: where slabs are that no node has room
  // for, with places of options.slab_bytes; its transport is one of `transports`. null: none.
  static Result<std::unique_ptr<Engine>> create(
      const PagerOptions& options, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore* state = nullptr,
      rdma::SlabFile* file = nullptr);
  virtual ~Engine() = default;

  // Borrows the first slab (waiting up to `patience` for memory nodes), then serves the address
  // space. `on_child` takes the children of a target that forks; needed with ForkMode::kShare.
  virtual Result<std::unique_ptr<Pager>> add(const TargetOptions& options,
                                             std::unique_ptr<uffd::AddressSpace> space,
                                             Milliseconds patience, OnChild on_child) = 0;
  // Serves a forked child. It borrows memory when it first has to write a page back. The budget is
  // no limit until Pager::agent_ready(), and nothing is evicted until Pager::begin_eviction().
  // After a failure the inheritance is as it was.
  virtual Result<std::unique_ptr<Pager>> adopt(const TargetOptions& options,
                                               Inheritance& inheritance, OnChild on_child) = 0;
  // Serves an address space whose pages are at first those that are stored; the others are zeros.
  // Like a forked child: it borrows memory when it first has to write a page back, and the budget
  // and eviction begin with Pager::agent_ready() and Pager::begin_eviction(). `space` is taken only
  // on success. kUnavailable: no replica of a slab is left, or a node is not known.
  virtual Result<std::unique_ptr<Pager>> restore(const TargetOptions& options,
                                                 std::unique_ptr<uffd::AddressSpace>& space,
                                                 std::shared_ptr<const StoredPages> stored) = 0;
  // Serves a target of the predecessor again, by its number. `space`: the same address space, where
  // all drops have ended; after a failure it is the caller's again. One that was forking still is
  // (Pager::is_forking()). kNotFound: there is none of this number. kUnavailable: it has ended.
  virtual Result<std::unique_ptr<Pager>> resume(const ResumeOptions& options,
                                                std::unique_ptr<uffd::AddressSpace>& space,
                                                OnChild on_child) = 0;
  // The predecessor had begun to serve it.
  virtual bool can_resume(uint64_t number) = 0;
  // What else the predecessor had is given back: targets that are not among these numbers.
  virtual void end_succession(const std::set<uint64_t>& resumed) = 0;
};

}  // namespace farpage::pager
