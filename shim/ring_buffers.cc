#include "shim/ring_buffers.h"

#include <errno.h>
#include <sys/uio.h>

#include "shim/memory_calls.h"
#include "shim/next.h"
#include "shim/shim.h"

// liburing makes its own system calls, so its functions are wrapped as well.
struct io_uring;

namespace farpage::shim {
namespace {

// From <linux/io_uring.h>, which is too old on some systems.
constexpr unsigned kRegisterBuffers = 0;
constexpr unsigned kRegisterBuffers2 = 15;
constexpr unsigned kRegisterBuffersUpdate = 16;
constexpr unsigned kRegisterProvidedRing = 22;
constexpr unsigned kRingDescriptorIsIndex = 1U << 31;
struct Resources {  // io_uring_rsrc_register
  uint32_t count;
  uint32_t flags;
  uint64_t reserved;
  uint64_t data;
  uint64_t tags;
};
struct ResourcesUpdate {  // io_uring_rsrc_update2
  uint32_t offset;
  uint32_t reserved;
  uint64_t data;
  uint64_t tags;
  uint32_t count;
  uint32_t reserved2;
};
struct ProvidedRing {  // io_uring_buf_reg
  uint64_t address;
  uint32_t entries;
  uint16_t group;
  uint16_t flags;
};
constexpr uint64_t kProvidedEntryBytes = 16;

long register_range(uint64_t address, uint64_t bytes) {
  const uint64_t begin = address & ~(kPageBytes - 1);
  return for_each_part(
      {begin, round_up_to_page(address + bytes)},
      [](Span far) { return shim.register_buffer(far); }, [](Span) { return 0L; });
}

long register_vector(const iovec* parts, unsigned count) {
  for (unsigned i = 0; parts != nullptr && i < count; ++i) {
    if (const long result = register_range(address_of(parts[i].iov_base), parts[i].iov_len);
        is_error(result)) {
      return result;
    }
  }
  return 0;
}

long register_argument(unsigned operation, const void* argument, unsigned count) {
  if (argument == nullptr || !shim.active()) {
    return 0;
  }
  switch (operation & ~kRingDescriptorIsIndex) {
    case kRegisterBuffers:
      return register_vector(static_cast<const iovec*>(argument), count);
    case kRegisterBuffers2: {
      const auto& all = *static_cast<const Resources*>(argument);
      return register_vector(reinterpret_cast<const iovec*>(all.data), all.count);
    }
    case kRegisterBuffersUpdate: {
      const auto& some = *static_cast<const ResourcesUpdate*>(argument);
      return register_vector(reinterpret_cast<const iovec*>(some.data), some.count);
    }
    case kRegisterProvidedRing: {
      const auto& ring = *static_cast<const ProvidedRing*>(argument);
      return register_range(ring.address, ring.entries * kProvidedEntryBytes);
    }
    default:
      return 0;
  }
}

using BuffersFunction = int(io_uring*, const iovec*, unsigned);
using TaggedFunction = int(io_uring*, const iovec*, const uint64_t*, unsigned);
using UpdateFunction = int(io_uring*, unsigned, const iovec*, const uint64_t*, unsigned);
using ProvidedFunction = int(io_uring*, ProvidedRing*, unsigned);

constinit Next<BuffersFunction> next_buffers("io_uring_register_buffers");
constinit Next<TaggedFunction> next_tagged("io_uring_register_buffers_tags");
constinit Next<UpdateFunction> next_update("io_uring_register_buffers_update_tag");
constinit Next<ProvidedFunction> next_provided("io_uring_register_buf_ring");

// liburing returns negative errnos.
template <typename Function, typename... Arguments>
int after(long registered, Next<Function>& next, Arguments... arguments) {
  if (is_error(registered)) {
    return static_cast<int>(registered);
  }
  Function* const function = next.get();
  return function == nullptr ? -ENOSYS : function(arguments...);
}

}  // namespace

long register_ring(int ring, unsigned operation, void* argument, unsigned count) {
  const long registered = register_argument(operation, argument, count);
  return is_error(registered)
             ? registered
             : system_call(SYS_io_uring_register, ring, operation, argument, count);
}

}  // namespace farpage::shim

namespace shim = farpage::shim;

FARPAGE_EXPORT int io_uring_register_buffers(io_uring* ring, const iovec* parts, unsigned count) {
  const long registered = shim::register_argument(shim::kRegisterBuffers, parts, count);
  return shim::after(registered, shim::next_buffers, ring, parts, count);
}

FARPAGE_EXPORT int io_uring_register_buffers_tags(io_uring* ring, const iovec* parts,
                                                  const uint64_t* tags, unsigned count) {
  const long registered = shim::register_argument(shim::kRegisterBuffers, parts, count);
  return shim::after(registered, shim::next_tagged, ring, parts, tags, count);
}

FARPAGE_EXPORT int io_uring_register_buffers_update_tag(io_uring* ring, unsigned offset,
                                                        const iovec* parts, const uint64_t* tags,
                                                        unsigned count) {
  const long registered = shim::register_argument(shim::kRegisterBuffers, parts, count);
  return shim::after(registered, shim::next_update, ring, offset, parts, tags, count);
}

FARPAGE_EXPORT int io_uring_register_buf_ring(io_uring* ring, shim::ProvidedRing* provided,
                                              unsigned flags) {
  const long registered = shim::register_argument(shim::kRegisterProvidedRing, provided, 1);
  return shim::after(registered, shim::next_provided, ring, provided, flags);
}
