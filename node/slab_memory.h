// OwnedSlabMemory: the memory of one slab for one lease, from the kernel's zeroed pages to their
// release; or its file.
#pragma once

#include <cstdint>
#include <string>

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
  // Not empty: the slab is a file in this folder. Its room there is taken now; lazy leaves out to
  // write it once.
  std::string folder;
};

// A memfd, mapped shared and (unless lazy) touched, so that no access faults later. The kernel
// zeroes it. Each lease gets a new memfd, because a former borrower may still have the old one
// mapped (shm passes the descriptor). A slab in a file is a new nameless file in the same way; the
// addresses of its view are reserved, so that no other slab has them, and have no memory.
class OwnedSlabMemory {
 public:
  OwnedSlabMemory() = default;
  OwnedSlabMemory(OwnedSlabMemory&&) noexcept = default;
  OwnedSlabMemory& operator=(OwnedSlabMemory&&) noexcept = default;

  // kExhausted: not enough memory, or room on the disk. kInvalid: numa_node does not exist.
  // kUnsupported: no files of this kind in that folder. The text names the remedy.
  static Result<OwnedSlabMemory> create(const SlabMemoryOptions& options);

  // Returns every page to the kernel, even if a former borrower still has it mapped; that borrower
  // then reads zeros. Must be called before destruction if the slab was ever lent. A file's room is
  // given back with the file, which no borrower has.
  Status give_up_pages();

  rdma::SlabMemory view() const { return {mapping_.bytes(), memfd_.get(), file_.get()}; }

 private:
  OwnedSlabMemory(Fd memfd, Fd file, Mapping mapping)
      : memfd_(std::move(memfd)), file_(std::move(file)), mapping_(std::move(mapping)) {}
  static Result<OwnedSlabMemory> create_file(const SlabMemoryOptions& options);

  Fd memfd_;
  Fd file_;
  Mapping mapping_;
};

}  // namespace farpage::node
