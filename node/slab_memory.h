// SlabMemory's owner: one life of one slab, from the kernel's zeroed pages to their return.
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
  bool lazy = false;       // take each page when it is first written, not now
  int numa_node = -1;      // all pages from this NUMA node; -1: wherever the kernel likes
};

// A memfd, mapped shared and (unless lazy) touched, so that no access faults later. It is zeroed by
// the kernel: one life is one memfd, and the next borrower gets another one. That is what keeps a
// former borrower out, who may still have the old memfd mapped (shm hands it over).
class OwnedSlabMemory {
 public:
  OwnedSlabMemory() = default;
  OwnedSlabMemory(OwnedSlabMemory&&) noexcept = default;
  OwnedSlabMemory& operator=(OwnedSlabMemory&&) noexcept = default;

  // Fails with kExhausted when the memory is not there, kInvalid when numa_node does not exist; the
  // text says the cure.
  static Result<OwnedSlabMemory> create(const SlabMemoryOptions& options);

  // Gives every page back to the kernel, also where a former borrower still has it mapped: it reads
  // zeros from now on. Must be called before destruction if the slab was ever lent.
  Status give_up_pages();

  rdma::SlabMemory view() const { return {mapping_.bytes(), memfd_.get()}; }

 private:
  OwnedSlabMemory(Fd memfd, Mapping mapping)
      : memfd_(std::move(memfd)), mapping_(std::move(mapping)) {}

  Fd memfd_;
  Mapping mapping_;
};

}  // namespace farpage::node
