// FileOperations: READs and WRITEs of slabs in a file (SlabMemory::file), for one connection. They
// wait for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/mapping.h"
#include "base/result.h"
#include "rdma/key_table.h"
#include "rdma/limits.h"

namespace farpage::rdma::tcp {

// Its memory is made at the first use: the disk writes into it past the page cache, so it is
// aligned, and no memory of the slab's exists.
//
// Threads: one server thread.
class FileOperations {
 public:
  // Whole pages of the slab; else no disk can be asked.
  static bool can_serve(const KeyTable::Use& range);

  // The next READ, of at most kMaxOperationBytes, into memory that stays as it is until
  // forget_reads(). Not while is_full().
  Result<std::span<std::byte>> read(const KeyTable::Use& range);
  bool is_full() const { return read_bytes_ >= kMaxOperationBytes; }
  void forget_reads() { read_bytes_ = 0; }

  // Where a WRITE of at most kMaxOperationBytes is gathered.
  Result<std::span<std::byte>> gathered();
  // All of it, as it was gathered.
  Status write(const KeyTable::Use& range);

 private:
  Result<std::span<std::byte>> memory();

  Mapping memory_;  // one WRITE, then READs
  size_t read_bytes_ = 0;
};

}  // namespace farpage::rdma::tcp
