// A file without a name in a folder on a disk, read and written past the page cache. It ends with
// the last process that has it open, and no file of the user's can be overwritten by a wrong
// folder.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::rdma::file {

// Its blocks are allocated. Failures name the folder and the cure: kExhausted: no room for it.
// kUnsupported: memory (tmpfs), or a file system that cannot write single pages past the page
// cache.
Result<Fd> make_nameless_file(const std::string& folder, uint64_t bytes);

// The same failures where files of so many bytes in all would not fit now.
Status check_free(const std::string& folder, uint64_t bytes);

// A WRITE of blocks that were never written changes the file system's own data: it waits for its
// journal, keeps READs of the whole file waiting, and cannot be done without a thread of the
// kernel. So they are written once before they are used.
Status write_zeros(int descriptor, uint64_t offset, uint64_t bytes);

}  // namespace farpage::rdma::file
