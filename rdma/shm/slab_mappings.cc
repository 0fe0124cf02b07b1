#include "rdma/shm/slab_mappings.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace farpage::rdma::shm {

Result<std::shared_ptr<Mapping>> SlabMappings::get(const Name& name, const Fd& memfd,
                                                   uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto found = mappings_.find(name);
  if (found != mappings_.end()) {
    if (std::shared_ptr<Mapping> mapping = found->second.lock()) {
      if (mapping->size() == bytes) return mapping;
      return fail(ErrorCode::kInvalid, "a slab changed its size");
    }
  }
  struct stat info {};
  if (::fstat(memfd.get(), &info) != 0) return fail_errno("fstat of a slab's memfd");
  const int seals = ::fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || bytes == 0 ||
      static_cast<uint64_t>(info.st_size) < bytes)
    return fail(ErrorCode::kInvalid, "a slab's memfd is too small or not sealed against shrinking");
  FARPAGE_TRY(mapping, Mapping::shared(memfd.get(), bytes));
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  auto shared = std::make_shared<Mapping>(std::move(mapping));
  mappings_[name] = shared;
  return shared;
}

}  // namespace farpage::rdma::shm
