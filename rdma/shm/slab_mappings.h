// SlabMappings: one mapping of each slab in this process, shared by all channels that use it, so
// that its page table entries are built once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/mutex.h"

namespace farpage::rdma::shm {

// Threads: any.
class SlabMappings {
 public:
  // Which slab: the host's number for itself and its number for the lease.
  using Name = std::pair<uint64_t, uint64_t>;

  // Fails with kInvalid when the memfd is smaller than `bytes` or not sealed against shrinking.
  Result<std::shared_ptr<Mapping>> get(const Name& name, const Fd& memfd, uint64_t bytes);

 private:
  Mutex mutex_;
  std::map<Name, std::weak_ptr<Mapping>> mappings_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::shm
