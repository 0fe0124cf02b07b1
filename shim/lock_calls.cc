// mlock and variants: the kernel does not swap the pages out, the pager does not evict them.
#include <errno.h>
#include <sys/mman.h>

#include "shim/memory_calls.h"
#include "shim/shim.h"

namespace farpage::shim {

using uffd::handover::RequestKind;

namespace {

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

// Unlike the other calls these take any address and round outwards.
Span pages_around(const void* address, size_t length) {
  const uint64_t begin = address_of(address) & ~(kPageBytes - 1);
  const uint64_t end = address_of(address) + length;
  return end < begin ? Span{} : Span{begin, round_up_to_page(end)};
}

long kernel_lock(Span span, unsigned flags) {
  return flags == 0 ? system_call(SYS_mlock, span.begin, span.bytes())
                    : system_call(SYS_mlock2, span.begin, span.bytes(), flags);
}

}  // namespace

long Shim::lock(Span far, unsigned flags) {
  // Zero bytes: checks only whether this process may lock memory at all.
  if (const long allowed = system_call(SYS_mlock, far.begin, 0); is_error(allowed)) {
    return allowed;
  }
  {
    const Locked locked(lock_);
    if (free_.intersects(far)) {
      return -ENOMEM;  // as the kernel for unmapped memory
    }
    if (const long pinned = control_.request(RequestKind::kPin, far); is_error(pinned)) {
      return pinned;
    }
    locked_.add(far);
  }
  // Not under our lock: this fetches remote pages.
  const long result = kernel_lock(far, flags);
  if (is_error(result)) {
    unlock(far);
  }
  return result;
}

void Shim::unlock(Span far) {
  const Locked locked(lock_);
  unlock_locked(far);
}

void Shim::unlock_locked(Span far) {
  if (!locked_.intersects(far)) {
    return;
  }
  system_call(SYS_munlock, far.begin, far.bytes());
  locked_.remove(far);
  control_.request(RequestKind::kUnpin, far);
  registered_.for_each_in(far, [this](Span span) { control_.request(RequestKind::kPin, span); });
}

long Shim::lock_all(int flags) {
  if ((flags & MCL_CURRENT) != 0) {
    const Locked locked(lock_);
    long pinned = 0;
    const auto pin = [&](Span used) {
      pinned = is_error(pinned) ? pinned : control_.request(RequestKind::kPin, used);
    };
    free_.for_each_gap_in(window_, pin);
    extents_.for_each_in(kEverything, pin);
    if (is_error(pinned)) {
      repin();
      return pinned;
    }
  }
  const long result = system_call(SYS_mlockall, flags);
  const Locked locked(lock_);
  if (is_error(result)) {
    repin();
    return result;
  }
  if ((flags & MCL_CURRENT) != 0) {
    // The kernel has locked the whole window.
    free_.for_each_in(window_,
                      [](Span span) { system_call(SYS_munlock, span.begin, span.bytes()); });
    const auto note = [this](Span used) { locked_.add(used); };
    free_.for_each_gap_in(window_, note);
    extents_.for_each_in(kEverything, note);
  }
  const int future = (flags & MCL_FUTURE) != 0 ? flags & (MCL_FUTURE | MCL_ONFAULT) : 0;
  future_lock_.store(future, std::memory_order_relaxed);
  return 0;
}

long Shim::unlock_all() {
  const Locked locked(lock_);
  future_lock_.store(0, std::memory_order_relaxed);
  const long result = system_call(SYS_munlockall);
  locked_.remove(kEverything);
  repin();
  return result;
}

// Leaves only what the program has locked or registered pinned.
void Shim::repin() {
  control_.request(RequestKind::kUnpin, window_);
  extents_.for_each_in(kEverything,
                       [this](Span span) { control_.request(RequestKind::kUnpin, span); });
  for (const Ranges* ranges : {&locked_, &registered_}) {
    ranges->for_each_in(kEverything,
                        [this](Span span) { control_.request(RequestKind::kPin, span); });
  }
}

// Skips a reservation (PROT_NONE): it may be much larger than what is ever used.
long Shim::lock_as_future(Span far, int protection) {
  const int flags = future_lock_.load(std::memory_order_relaxed);
  if ((flags & MCL_FUTURE) == 0 || protection == PROT_NONE) {
    return 0;
  }
  const long result = lock(far, (flags & MCL_ONFAULT) != 0 ? MLOCK_ONFAULT : 0);
  return result == -ENOMEM ? -EAGAIN : result;  // as mmap reports it
}

long Shim::register_buffer(Span far) {
  const Locked locked(lock_);
  const long pinned = control_.request(RequestKind::kPin, far);
  if (!is_error(pinned)) {
    registered_.add(far);
  }
  return pinned;
}

long lock_memory(const void* address, size_t length, unsigned flags) {
  const Span wanted = pages_around(address, length);
  if (!touches_far_memory(wanted) || (flags & ~unsigned{MLOCK_ONFAULT}) != 0) {
    return flags == 0 ? system_call(SYS_mlock, address, length)
                      : system_call(SYS_mlock2, address, length, flags);
  }
  return for_each_part(
      wanted, [flags](Span far) { return shim.lock(far, flags); },
      [flags](Span span) { return kernel_lock(span, flags); });
}

long unlock_memory(const void* address, size_t length) {
  const auto unlock = [](Span far) {
    shim.unlock(far);
    return 0L;
  };
  if (shim.active()) {
    for_each_part(pages_around(address, length), unlock, [](Span) { return 0L; });
  }
  return system_call(SYS_munlock, address, length);
}

long lock_all_memory(int flags) {
  return shim.active() ? shim.lock_all(flags) : system_call(SYS_mlockall, flags);
}

long unlock_all_memory() {
  return shim.active() ? shim.unlock_all() : system_call(SYS_munlockall);
}

}  // namespace farpage::shim
