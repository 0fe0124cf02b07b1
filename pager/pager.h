// Pager: the brain. Gives one address space more memory than its budget, by keeping the rest on
// memory nodes. One pager serves one target.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/client.h"
#include "pager/options.h"
#include "pager/stats.h"
#include "rdma/transport.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// Threads (all of its own): `workers` fault workers, one evictor, one connector, one borrower.
// Every method may be called from any other thread.
class Pager {
 public:
  // Borrows the first slab (waiting up to `patience` for memory nodes), then starts. The client and
  // the transports outlive the pager; `transports` are tried in their order.
  static Result<std::unique_ptr<Pager>> create(
      const PagerOptions& options, std::unique_ptr<uffd::AddressSpace> space,
      coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
      Milliseconds patience);
  virtual ~Pager() = default;

  // The target gives these pages up: zeros from now on. Returns when no worker holds one of them.
  virtual void discard(uffd::PageRun run) = 0;
  // Stands eviction still. True: every page of the target is present (brought in if the options say
  // so) or was never written, so that a copy-on-write copy of it is whole; end_fork() goes on.
  // False: it is not, and eviction goes on. Meanwhile no fault waits for room.
  virtual bool begin_fork() = 0;
  virtual void end_fork() = 0;

  virtual uffd::AddressSpace& space() = 0;
  virtual PagerStats stats() const = 0;
  // Exited, or called exec.
  virtual bool target_gone() const = 0;
  // For tests, when no fault and no eviction is under way: the page table and the budget agree.
  virtual Status check_invariants() const = 0;
};

}  // namespace farpage::pager
