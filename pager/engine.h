// Engine: the threads and channels that page for any number of address spaces of one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/client.h"
#include "pager/fork/inheritance.h"
#include "pager/options.h"
#include "pager/pager.h"
#include "rdma/transport.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// What targets of one engine may have of their own.
struct TargetOptions {
  std::string name;  // of the region, for people
  uint64_t local_bytes = 0;
  ForkMode fork = ForkMode::kRefuse;
};

// Threads (all of its own): `workers` fault workers, one evictor, one connector, one borrower,
// one readahead. To each memory node there are at most
// 2 * workers + 1 channels, whatever the number of targets.
//
// Every method may be called from any other thread. The targets end before their engine.
class Engine {
 public:
  // Connects to nothing yet. The client and the transports outlive the engine; `transports` are
  // tried in their order. TargetOptions take the place of name, local_bytes and fork.
  static Result<std::unique_ptr<Engine>> create(
      const PagerOptions& options, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports);
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
};

}  // namespace farpage::pager
