// munmap, mmap(MAP_FIXED), mremap, mprotect and the fork advice of madvise on remote memory.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "far_memory.h"

namespace farpage::test {
namespace {

constexpr int kAnywhere = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

unsigned char* remap(Memory memory, size_t bytes, int flags, void* to = nullptr) {
  void* moved = mremap(memory.begin, memory.bytes, bytes, flags, to);
  REQUIRE(moved != MAP_FAILED);
  return static_cast<unsigned char*>(moved);
}

void unmap() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 1);
  push_out(memory);
  const Memory middle = memory.part(256, 512);
  REQUIRE(munmap(middle.begin, middle.bytes) == 0);
  REQUIRE(is_filled(memory.part(0, 256), 1) && is_filled(memory.part(768, 256), 1, 768));
  REQUIRE(mmap(middle.begin, middle.bytes, kReadWrite, kAnywhere | MAP_FIXED, -1, 0) ==
          middle.begin);
  REQUIRE(is_zero(middle));
  fill(memory, 2);
  push_out(memory);
  // Fixed anonymous memory, then a file, mapped over remote pages.
  REQUIRE(mmap(middle.begin, middle.bytes, kReadWrite, kAnywhere | MAP_FIXED, -1, 0) ==
          middle.begin);
  REQUIRE(is_zero(middle) && is_filled(memory.part(0, 256), 2));
  const int file = open("/proc/self/exe", O_RDONLY);
  const Memory page = memory.part(8, 1);
  REQUIRE(mmap(page.begin, kPage, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == page.begin);
  REQUIRE(page.begin[1] == 'E' && is_filled(memory.part(9, 200), 2, 9));
}

void remap_in_place_and_moved() {
  Memory memory = map_far(4 * kMiB);
  fill(memory, 3);
  push_out(memory);
  memory = {remap(memory, 6 * kMiB, MREMAP_MAYMOVE), 6 * kMiB};
  REQUIRE(is_zero(memory.part(1024, 512)) && is_filled(memory.part(0, 1024), 3));
  // With a mapping behind it, it must move.
  const Memory wall{memory.begin + memory.bytes, kMiB};
  REQUIRE(mmap(wall.begin, wall.bytes, kReadWrite, kAnywhere | MAP_FIXED, -1, 0) == wall.begin);
  push_out(memory.part(0, 1024));
  const unsigned char* before = memory.begin;
  memory = {remap(memory, 12 * kMiB, MREMAP_MAYMOVE), 12 * kMiB};
  REQUIRE(memory.begin != before);
  REQUIRE(is_filled(memory.part(0, 1024), 3) && is_zero(memory.part(1024, 2048)));
  push_out(memory.part(0, 1024));
  memory = {remap(memory, kMiB, 0), kMiB};
  REQUIRE(is_filled(memory, 3) && is_zero(wall));
  // The pages that were cut off are lost.
  memory = {remap(memory, 4 * kMiB, MREMAP_MAYMOVE), 4 * kMiB};
  REQUIRE(is_filled(memory.part(0, 256), 3) && is_zero(memory.part(256, 768)));
}

void remap_fixed() {
  const Memory source = map_far(2 * kMiB);
  const Memory target = map_far(2 * kMiB);
  fill(source, 4);
  fill(target, 5);
  push_out(source);
  push_out(target);
  REQUIRE(remap(source, 2 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target.begin) == target.begin);
  REQUIRE(is_filled(target, 4));
  unsigned char byte = 0;
  REQUIRE(mincore(source.begin, kPage, &byte) == 0 || errno == ENOMEM);
  // Far to local, and back.
  void* small = mmap(nullptr, 16 * kPage, kReadWrite, kAnywhere, -1, 0);
  const Memory local{static_cast<unsigned char*>(small), 16 * kPage};
  const Memory head = target.part(0, 16);
  push_out(head);
  REQUIRE(remap(head, head.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, small) == local.begin);
  REQUIRE(is_filled(local, 4) && is_filled(target.part(16, 496), 4, 16));
  REQUIRE(remap(local, local.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, head.begin) == head.begin);
  REQUIRE(is_filled(head, 4));
  churn(32 * kMiB);
  REQUIRE(is_filled(target, 4));
  REQUIRE(munmap(target.begin, target.bytes) == 0);
  errno = 0;
  REQUIRE(mremap(map_far(kMiB).begin, kMiB, kMiB, MREMAP_FIXED, small) == MAP_FAILED);
  REQUIRE(errno == EINVAL);
}

void remap_and_keep() {
  const Memory source = map_far(2 * kMiB);
  fill(source, 6);
  push_out(source);
  const Memory moved{remap(source, source.bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP), source.bytes};
  REQUIRE(moved.begin != source.begin && is_filled(moved, 6) && is_zero(source));
  fill(source, 7);
  REQUIRE(is_filled(moved, 6) && is_filled(source, 7));
}

// PROT_NONE pages can be evicted: 32 MiB of them and 32 MiB more fit the budget.
void closed_pages() {
  const Memory closed = map_far(32 * kMiB);
  fill(closed, 8);
  REQUIRE(mprotect(closed.begin, closed.bytes, PROT_NONE) == 0);
  churn(32 * kMiB);
  push_out(closed.part(0, 2048));
  REQUIRE(mprotect(closed.begin, closed.bytes, PROT_READ) == 0);
  REQUIRE(is_filled(closed, 8));
  // A guard page inside memory in use.
  const Memory guard = closed.part(100, 1);
  REQUIRE(mprotect(closed.begin, closed.bytes, kReadWrite) == 0);
  fill(closed, 9);
  REQUIRE(mprotect(guard.begin, kPage, PROT_NONE) == 0);
  push_out(closed.part(0, 1024));
  REQUIRE(is_filled(closed.part(0, 100), 9) && is_filled(closed.part(101, 923), 9, 101));
  REQUIRE(mprotect(guard.begin, kPage, PROT_READ) == 0 && is_filled(guard, 9, 100));
}

// By the system call, not by libc's function.
void bare_calls() {
  const Memory memory = map_far(4 * kMiB);
  fill(memory, 10);
  push_out(memory);
  REQUIRE(syscall(SYS_madvise, memory.begin, 2 * kMiB, MADV_DONTNEED) == 0);
  REQUIRE(is_zero(memory.part(0, 512)) && is_filled(memory.part(512, 512), 10, 512));
  const long moved = syscall(SYS_mremap, memory.begin, memory.bytes, 8 * kMiB, MREMAP_MAYMOVE, 0);
  REQUIRE(moved != -1);
  const Memory after{reinterpret_cast<unsigned char*>(moved), 8 * kMiB};
  REQUIRE(is_filled(after.part(512, 512), 10, 512) && is_zero(after.part(1024, 1024)));
  push_out(after.part(512, 512));
  REQUIRE(syscall(SYS_munmap, after.begin, after.bytes) == 0);
  const Memory again = map_far(8 * kMiB);
  REQUIRE(is_zero(again));
  errno = 0;
  REQUIRE(syscall(SYS_madvise, again.begin, again.bytes, 12345) == -1 && errno == EINVAL);
}

int status_of_child(void (*run)(Memory), Memory memory) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    run(memory);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

void fork_advice() {
  const auto wants_bytes = [](Memory memory) { REQUIRE(is_filled(memory, 11)); };
  const auto wants_zeros = [](Memory memory) { REQUIRE(is_zero(memory)); };
  const Memory memory = map_far(kMiB);
  fill(memory, 11);
  REQUIRE(status_of_child(wants_bytes, memory) == 0);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_DONTFORK) == 0);
  const int refused = status_of_child(wants_bytes, memory);
  REQUIRE(WIFSIGNALED(refused) && WTERMSIG(refused) == SIGSEGV);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_DOFORK) == 0);
  REQUIRE(status_of_child(wants_bytes, memory) == 0);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_WIPEONFORK) == 0);
  REQUIRE(status_of_child(wants_zeros, memory) == 0 && is_filled(memory, 11));
  push_out(memory);
  REQUIRE(status_of_child(wants_zeros, memory) == 0);
  REQUIRE(madvise(memory.begin, memory.bytes, MADV_KEEPONFORK) == 0);
  push_out(memory);
  REQUIRE(status_of_child(wants_bytes, memory) == 0);
  // Neither advice stays with the addresses.
  REQUIRE(madvise(memory.begin, memory.bytes / 2, MADV_WIPEONFORK) == 0);
  REQUIRE(madvise(memory.begin + memory.bytes / 2, memory.bytes / 2, MADV_DONTFORK) == 0);
  REQUIRE(munmap(memory.begin, memory.bytes) == 0);
  const Memory again = map_far(kMiB);
  REQUIRE(again.begin == memory.begin);
  fill(again, 11);
  REQUIRE(status_of_child(wants_bytes, again) == 0);
}

}  // namespace

const std::vector<Scenario> kMappingScenarios = {
    {"unmap", unmap},
    {"remap", remap_in_place_and_moved},
    {"remap-fixed", remap_fixed},
    {"remap-and-keep", remap_and_keep},
    {"closed-pages", closed_pages},
    {"bare-calls", bare_calls},
    {"fork-advice", fork_advice},
};

}  // namespace farpage::test
