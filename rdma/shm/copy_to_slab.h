// Copying into memory that this process will not read soon.
#pragma once

#include <cstddef>
#include <span>

namespace farpage::rdma::shm {

// Like memcpy of all of `from`; `to` has as many bytes. Where the CPU supports it, the stores
// bypass its caches: the lines of a slab need not be read before they are overwritten, and no other
// lines are displaced (docs/experiments/scan-and-evict.md). A thread that sees a later store of the
// caller also sees these bytes.
void copy_to_slab(std::byte* to, std::span<const std::byte> from);

}  // namespace farpage::rdma::shm
