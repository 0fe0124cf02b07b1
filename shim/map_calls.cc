// mmap, munmap, pkey_mprotect.
#include <errno.h>
#include <sys/mman.h>

#include "shim/memory_calls.h"
#include "shim/shim.h"

namespace farpage::shim {
namespace {

// Far memory cannot have the properties that these flags ask for.
constexpr int kLocalFlags = MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED | MAP_STACK
#ifdef MAP_32BIT
                            | MAP_32BIT
#endif
    ;
constexpr int kProtections = PROT_READ | PROT_WRITE | PROT_EXEC;

bool may_be_far(const MapCall& call) {
  return (call.flags & (MAP_ANONYMOUS | MAP_PRIVATE)) == (MAP_ANONYMOUS | MAP_PRIVATE) &&
         (call.flags & kLocalFlags) == 0 && (call.protection & ~kProtections) == 0 &&
         call.length > 0;
}

// Whether this reserves address space at a hint that the program may require.
//
// A hint does not bind, and most programs use it only to spread their mappings: mimalloc, V8 and
// Go's runtime accept any address. So their memory is far, whatever the hint. The heap of OpenJDK's
// ZGC must lie at certain addresses, from 4 TiB on: it reserves them with PROT_NONE, unmaps at once
// a reservation at another address, and continues until it gives up. After a program has done so,
// its hints are honored: a reservation is local, and memory that can be used at once an extent.
//
// Below 1 TiB, a JVM searches in the same way for a range for compressed pointers, but accepts any
// address in the end; its heap should be far.
bool is_at_high_hint(const MapCall& call) {
  constexpr uint64_t kLowest = uint64_t{1} << 40;
  constexpr uint64_t kEnd = uint64_t{1} << 47;  // the kernel's limit without a higher hint
  const uint64_t hint = address_of(call.address);
  return hint % kPageBytes == 0 && hint >= kLowest && hint < kEnd;
}

bool may_need_its_hint(const MapCall& call) {
  return call.protection == PROT_NONE && (call.flags & MAP_NORESERVE) != 0 && is_at_high_hint(call);
}

long map_local(const MapCall& call, int flags, void* address) {
  return system_call(SYS_mmap, address, call.length, call.protection, flags, call.fd, call.offset);
}

long map_local(const MapCall& call) {
  return map_local(call, call.flags, call.address);
}

bool may_be_extent(const MapCall& call) {
  return may_be_far(call) && call.length >= shim.minimum_bytes() && call.protection != PROT_NONE;
}

long map_fixed(const MapCall& call) {
  const Span wanted = pages_of(call.address, call.length);
  const Span in_window = shim.window_part(wanted);
  if (may_be_far(call) && !wanted.empty() && in_window.contains(wanted)) {
    return shim.map_at(wanted, call.protection);
  }
  if (may_be_extent(call) && !wanted.empty() && in_window.empty()) {
    return shim.map_extent(wanted, call.protection, call.flags);
  }
  if (shim.first_far_part(wanted).empty()) {
    return map_local(call);
  }
  // Maps elsewhere first, then moves the mapping here: nothing is lost if the kernel refuses it.
  const long elsewhere = map_local(call, call.flags & ~MAP_FIXED, nullptr);
  if (is_error(elsewhere)) {
    return elsewhere;
  }
  const uint64_t from = static_cast<uint64_t>(elsewhere);
  const long moved = shim.overlay({from, from + wanted.bytes()}, wanted);
  if (is_error(moved)) {
    system_call(SYS_munmap, elsewhere, wanted.bytes());
  }
  return moved;
}

}  // namespace

long map(const MapCall& call) {
  if (!shim.active()) {
    return map_local(call);
  }
  if ((call.flags & MAP_FIXED_NOREPLACE) == MAP_FIXED_NOREPLACE) {
    const Span wanted = pages_of(call.address, call.length);
    return may_be_extent(call) && !wanted.empty()
               ? shim.map_extent(wanted, call.protection, call.flags)
               : map_local(call);
  }
  if ((call.flags & MAP_FIXED) != 0) {
    return map_fixed(call);
  }
  const uint64_t bytes = round_up_to_page(call.length);
  if (!may_be_far(call) || call.length < shim.minimum_bytes() || bytes < call.length) {
    return map_local(call);
  }
  const bool reserves_at_hint = may_need_its_hint(call);
  if (shim.insists_on_hints() && is_at_high_hint(call)) {
    MapCall there = call;
    there.flags |= MAP_FIXED_NOREPLACE;
    if (const long mapped = map(there); !is_error(mapped)) {
      return mapped;
    }
  }
  using Placing = Shim::Placing;
  const long far = shim.map(bytes, call.protection,
                            reserves_at_hint ? Placing::kRefusedHint : Placing::kAnywhere);
  return far != 0 ? far : map_local(call);
}

long unmap(void* address, size_t length) {
  const auto far = [](Span span) { return shim.unmap(span); };
  const auto local = [](Span span) { return system_call(SYS_munmap, span.begin, span.bytes()); };
  const Span wanted = pages_of(address, length);
  return touches_far_memory(wanted) ? for_each_part(wanted, far, local)
                                    : system_call(SYS_munmap, address, length);
}

long protect_with_key(void* address, size_t length, int protection, int key) {
  if (touches_far_memory(pages_of(address, length))) {
    shim.note_altered();  // the key would stay with the addresses
  }
  return system_call(SYS_pkey_mprotect, address, length, protection, key);
}

}  // namespace farpage::shim
