// madvise, mlock, mincore and msync on remote memory.
#include "far_memory.h"

namespace farpage::test {
namespace {

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

void pageout_and_willneed() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 1);
  REQUIRE(resident_pages(memory) > 0);
  push_out(memory);
  REQUIRE(msync(memory.begin, memory.bytes, MS_SYNC) == 0);
  REQUIRE(resident_pages(memory) == 0);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_WILLNEED) == 0);
  wait_until([memory] { return resident_pages(memory) == memory.pages(); });
  REQUIRE(is_filled(memory, 1));
  // Never written: nothing to fetch, and still zeros.
  const Memory empty = map_far(kMiB);
  REQUIRE(madvise(empty.begin, empty.bytes, MADV_WILLNEED) == 0);
  REQUIRE(madvise(empty.begin, empty.bytes, MADV_PAGEOUT) == 0);
  REQUIRE(is_zero(empty));
}

void give_up() {
  const Memory memory = map_far(4 * kMiB);
  for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
    for (const bool away : {false, true}) {
      fill(memory, 2);
      if (away) push_out(memory);
      REQUIRE(madvise(memory.part(1, 900).begin, 900 * kPage, advice) == 0);
      REQUIRE(is_zero(memory.part(1, 900)) && is_filled(memory.part(0, 1), 2));
      REQUIRE(is_filled(memory.part(901, 123), 2, 901));
    }
  }
}

void sequential() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 3);
  push_out(memory);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_SEQUENTIAL) == 0);
  REQUIRE(is_filled(memory.part(0, 1), 3));  // one touch fetches the pages behind it too
  wait_until([memory] { return resident_pages(memory.part(1, 16)) == 16; });
  REQUIRE(is_filled(memory, 3));
}

void random_access() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 4);
  push_out(memory);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_RANDOM) == 0);
  REQUIRE(is_filled(memory.part(0, 64), 4));  // a stream, but nothing is prefetched
  usleep(100'000);
  REQUIRE(resident_pages(memory) == 64);
  // The advice ends with the mapping.
  REQUIRE(munmap(memory.begin, memory.bytes) == 0);
  const Memory again = map_far(4 * kMiB);
  REQUIRE(again.begin == memory.begin);
  fill(again, 5);
  // Repeated until it is seen: a walk may end before a prefetch channel is connected.
  wait_until([again] {
    push_out(again);
    REQUIRE(is_filled(again.part(0, 64), 5));
    usleep(10'000);
    return resident_pages(again) > 64;
  });
  REQUIRE(is_filled(again, 5));
}

// 16 MiB are local.
void lock() {
  const Memory locked = map_far(4 * kMiB);
  fill(locked, 6);
  push_out(locked);
  REQUIRE(mlock(locked.begin, locked.bytes) == 0);
  REQUIRE(resident_pages(locked) == locked.pages());
  churn(48 * kMiB);
  REQUIRE(resident_pages(locked) == locked.pages() && is_filled(locked, 6));
  for (const int advice : {MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT, MADV_COLD}) {
    errno = 0;
    REQUIRE(madvise(locked.begin, kPage, advice) == -1 && errno == EINVAL);
  }
  const Memory large = map_far(32 * kMiB);
  fill(large, 7);
  errno = 0;
  REQUIRE(mlock(large.begin, large.bytes) == -1 && errno == ENOMEM);
  REQUIRE(mlock2(large.begin, large.bytes, MLOCK_ONFAULT) == -1 && errno == ENOMEM);
  REQUIRE(is_filled(large, 7));
  REQUIRE(munlock(locked.begin, locked.bytes) == 0);
  // Repeated until it is seen: pages that came back once may outlive a walk through others.
  wait_until([locked] {
    churn(48 * kMiB);
    return resident_pages(locked) < locked.pages();
  });
  REQUIRE(is_filled(locked, 6));
  // The lock ends with the mapping: unmapped and mapped again, the pages may be evicted.
  REQUIRE(mlock(locked.begin, locked.bytes) == 0 && munmap(locked.begin, locked.bytes) == 0);
  const Memory again = map_far(4 * kMiB);
  REQUIRE((uses_extents() || again.begin == locked.begin) && is_zero(again));
  fill(again, 8);
  push_out(again);
  REQUIRE(is_filled(again, 8));
}

// 256 MiB are local.
void lock_all() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 9);
  push_out(memory);
  REQUIRE(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  REQUIRE(resident_pages(memory) == memory.pages() && is_filled(memory, 9));
  const Memory later = map_far(4 * kMiB);
  REQUIRE(resident_pages(later) == later.pages() && is_zero(later));
  errno = 0;
  REQUIRE(mmap(nullptr, 512 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
              MAP_FAILED &&
          errno == EAGAIN);
  REQUIRE(madvise(later.begin, kPage, MADV_PAGEOUT) == -1 && errno == EINVAL);
  // Released after a foreign mapping was there, and mapped again: twice, because of the flags that
  // the kernel keeps.
  for (int round = 0; round < 2; ++round) {
    REQUIRE(mmap(later.begin, kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            later.begin);
    REQUIRE(munmap(later.begin, later.bytes) == 0);
    REQUIRE(map_far(later.bytes).begin == later.begin && is_zero(later));
  }
  REQUIRE(munlockall() == 0);
  fill(later, 10);
  push_out(later);
  REQUIRE(is_filled(later, 10) && is_filled(memory, 9));
}

// 16 MiB are local, and more than that is in use.
void lock_all_refused() {
  const Memory memory = map_far(32 * kMiB);
  fill(memory, 11);
  errno = 0;
  REQUIRE(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);
  churn(32 * kMiB);  // nothing is still pinned
  push_out(memory);
  REQUIRE(is_filled(memory, 11));
}

}  // namespace

const std::vector<Scenario> kAdviceScenarios = {
    {"pageout-and-willneed", pageout_and_willneed},
    {"give-up", give_up},
    {"sequential", sequential},
    {"random", random_access},
    {"lock", lock},
    {"lock-all", lock_all},
    {"lock-all-refused", lock_all_refused},
};

}  // namespace farpage::test
