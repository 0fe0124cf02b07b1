// The file transport: slabs in a file of this host, read and written past the page cache
// (O_DIRECT) through io_uring.
//
// The file has no name: nothing is overwritten by it, no other process can open it by accident, and
// it ends with the last process that has it open. Its blocks are allocated when it is made, so that
// a disk without room is an error then, and not at a fault.
//
// Fencing. A WRITE that has timed out may still be under way in the kernel. connect() of the same
// session succeeds only when it has ended. After the death of the process the kernel completes what
// it has begun; each process has an open file description of its own with a lock (flock(2)), which
// the kernel keeps until the last operation of that description has ended. A successor's channels
// connect only with that lock. Each attempt waits for it for some milliseconds.
#pragma once

#include <memory>
#include <string>

#include "rdma/slab_file.h"
#include "rdma/transport.h"

namespace farpage::rdma {

struct FileOptions {
  std::string folder;
  uint64_t bytes = 0;       // at least one slab; rounded down to whole slabs
  uint64_t slab_bytes = 0;  // a multiple of kPageBytes
};

// What a successor needs to go on with the file of a dead process. The descriptor is in its table.
struct FileHeirloom {
  int descriptor = -1;
  RemoteKey key;
};

// Threads: any. The channels of its transports may outlive it.
class OpenFile : public SlabFile {
 public:
  // Makes the file. Each error names the folder: kInvalid (no folder), kExhausted (no room),
  // kUnsupported (it cannot be read and written past the page cache, or is memory itself; or there
  // is no io_uring), kDenied, kIo.
  static Result<std::unique_ptr<OpenFile>> make(const FileOptions& options);
  // Goes on with the file of a dead process, of the same options; its places are to be taken again.
  static Result<std::unique_ptr<OpenFile>> take_over(const FileOptions& options,
                                                     const FileHeirloom& heirloom);

  // Opens a descriptor for a successor. It is open until this process and all that share its table
  // have ended.
  virtual Result<FileHeirloom> leave() const = 0;
  // Of kind kFile; connect() ignores the address. Operations and addresses are whole pages; others
  // end with kLocalError, as does what the disk refuses: the channel stays usable. Limits: READs
  // and WRITEs are of at most the smaller of the buffer and 1 MiB, which is also the most in
  // flight.
  virtual std::unique_ptr<Transport> transport() = 0;
};

}  // namespace farpage::rdma
