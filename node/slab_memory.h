// OwnedSlabMemory: the memory of one slab for one lease, from the kernel's zeroed pages to their
// release.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/result.h"
#include "rdma/memory_host.h"

namespace farpage::node {

// Where the pages of a slab come from.
struct SlabMemoryOptions {
  uint64_t slab_bytes = 0;
  bool hugepages = false;  // 2 MiB pages from the host's pool (vm.nr_hugepages)
  bool lazy = false;       // allocate each page at its first write, not now
  int numa_node = -1;      // all pages from this NUMA node; -1: the kernel chooses
};

// A memfd, mapped shared and (unless lazy) touched, so that no access faults later. The kernel
// zeroes it. Each lease gets a new memfd, because a former borrower may still have the old one
// mapped (shm passes the descriptor).
class OwnedSlabMemory {
 public:
  OwnedSlabMemory() = default;
  OwnedSlabMemory(OwnedSlabMemory&&) noexcept = default;
  OwnedSlabMemory& operator=(OwnedSlabMemory&&) noexcept = default;

  // kExhausted: not enough memory. kInvalid: numa_node does not exist. The text names the remedy.
  static Result<OwnedSlabMemory> create(const SlabMemoryOptions& options);

  // Returns every page to the kernel, even if a former borrower still has it mapped; that borrower
  // then reads zeros. Must be called before destruction if the slab was ever lent.
  Status give_up_pages();

  rdma::SlabMemory view() const { return {mapping_.bytes(), memfd_.get()}; }

 private:
  OwnedSlabMemory(Fd memfd, Mapping mapping)
      : memfd_(std::move(memfd)), mapping_(std::move(mapping)) {}

  Fd memfd_;
  Mapping mapping_;
};

}  // namespace farpage::node
