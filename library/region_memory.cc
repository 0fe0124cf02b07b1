#include <new>

#include "base/mutex.h"
#include "library/include/farpage/region.h"
#include "library/region_parts.h"
#include "library/span_allocator.h"

namespace farpage {

struct RegionMemory::Parts {
  explicit Parts(const library::Memory& of)
      : memory(of), base(of.bytes().data()), allocator(of.bytes().size() >> kPageShift) {}

  const library::Memory& memory;  // the region's; a move of the handle keeps its address
  std::byte* const base;
  mutable Mutex mutex;
  library::SpanAllocator allocator FARPAGE_GUARDED_BY(mutex);
};

RegionMemory::RegionMemory(Region& region)
    : parts_(std::make_unique<Parts>(*region.parts_->memory)) {}
RegionMemory::~RegionMemory() = default;

void* RegionMemory::try_allocate(size_t bytes, size_t alignment) noexcept {
  try {
    const MutexLock lock(parts_->mutex);
    const auto offset = parts_->allocator.allocate(bytes, alignment);
    return offset ? parts_->base + *offset : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;  // from the metadata
  }
}

void* RegionMemory::do_allocate(size_t bytes, size_t alignment) {
  void* memory = try_allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void RegionMemory::do_deallocate(void* memory, size_t bytes, size_t alignment) {
  std::optional<library::Extent> unused;
  {
    const MutexLock lock(parts_->mutex);
    const auto offset = static_cast<uint64_t>(static_cast<std::byte*>(memory) - parts_->base);
    unused = parts_->allocator.release(offset, bytes, alignment);
  }
  if (!unused) return;
  // Without the lock, because it waits for pages in flight. They cannot be allocated meanwhile.
  // After a failure they never are: it may be carried out later.
  const Status discarded =
      parts_->memory.discard({PageIndex{unused->first_page}, static_cast<uint32_t>(unused->pages)});
  if (!discarded) return;
  const MutexLock lock(parts_->mutex);
  parts_->allocator.give_back(*unused);
}

bool RegionMemory::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  return this == &other;
}

RegionMemoryStats RegionMemory::stats() const {
  const MutexLock lock(parts_->mutex);
  return {.allocated_bytes = parts_->allocator.allocated_bytes(),
          .reserved_bytes = parts_->allocator.reserved_bytes(),
          .region_bytes = parts_->memory.bytes().size(),
          .allocations = parts_->allocator.allocations()};
}

}  // namespace farpage
