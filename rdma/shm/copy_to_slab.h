// Copying into memory that this process will not read soon.
#pragma once

#include <cstddef>
#include <span>

namespace farpage::rdma::shm {

// As memcpy of all of `from`; to has as many bytes. Where the CPU allows, the bytes go past its
// caches: the lines of a slab need not be read before they are overwritten, and they displace
// nothing (docs/experiments/scan-and-evict.md). Visible to all who see what the caller stores
// afterwards.
void copy_to_slab(std::byte* to, std::span<const std::byte> from);

}  // namespace farpage::rdma::shm
