// Accesses to remote memory other than the program's own loads and stores: system calls, devices,
// rings, futexes, signals, threads, the loader.
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <string>
#include <thread>

#include "far_memory.h"

namespace farpage::test {
namespace {

// A file of known bytes, opened for direct I/O and unlinked.
int file_filled(size_t bytes, uint32_t seed, int flags) {
  char path[] = "far-memory-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0);
  const Memory memory = map_far(bytes);
  fill(memory, seed);
  push_out(memory);
  REQUIRE(write(file, memory.begin, bytes) == static_cast<ssize_t>(bytes));  // read by the kernel
  REQUIRE(munmap(memory.begin, bytes) == 0);
  const int again = open(path, O_RDWR | flags);
  REQUIRE(again >= 0 && close(file) == 0 && unlink(path) == 0);
  return again;
}

void direct_io() {
  const int file = file_filled(4 * kMiB, 1, O_DIRECT);
  const Memory memory = map_far(4 * kMiB);
  std::atomic<bool> stop{false};
  std::thread presses([&stop] {
    while (!stop) churn(24 * kMiB);
  });
  for (uint32_t round = 2; round < 12; ++round) {
    REQUIRE(pread(file, memory.begin, memory.bytes, 0) == static_cast<ssize_t>(memory.bytes));
    REQUIRE(is_filled(memory, round - 1));
    fill(memory, round);
    REQUIRE(pwrite(file, memory.begin, memory.bytes, 0) == static_cast<ssize_t>(memory.bytes));
    REQUIRE(madvise(memory.begin, memory.bytes, MADV_PAGEOUT) == 0);
  }
  stop = true;
  presses.join();
  // Safe because no device ever accesses these pages, however O_DIRECT was requested.
  const auto is_direct = [](int fd) { return (fcntl(fd, F_GETFL) & O_DIRECT) != 0; };
  REQUIRE(!is_direct(file));
  REQUIRE(fcntl(file, F_SETFL, O_DIRECT) == 0 && !is_direct(file));
  const int folder = open(".", O_RDONLY | O_DIRECTORY);
  const int other = openat(folder, "direct", O_CREAT | O_RDWR | O_DIRECT | O_APPEND, 0600);
  REQUIRE(other >= 0 && !is_direct(other) && (fcntl(other, F_GETFL) & O_APPEND) != 0);
  const long bare = syscall(SYS_openat, folder, "direct", O_RDWR | O_DIRECT);
  REQUIRE(bare >= 0 && !is_direct(static_cast<int>(bare)));
  REQUIRE(syscall(SYS_fcntl, bare, F_SETFL, O_DIRECT) == 0 && !is_direct(static_cast<int>(bare)));
  REQUIRE(unlink("direct") == 0);
  int packets[2];
  REQUIRE(pipe2(packets, 0) == 0);
  REQUIRE(fcntl(packets[1], F_SETFL, O_DIRECT | O_NONBLOCK) == 0 && is_direct(packets[1]));
}

// The kernel keeps the frames of a registered buffer: they must not be replaced.
void ring_buffers() {
  const int file = file_filled(4 * kMiB, 20, 0);
  const Memory memory = map_far(4 * kMiB);
  io_uring ring;
  REQUIRE(io_uring_queue_init(8, &ring, 0) == 0);
  const iovec buffer{memory.begin, memory.bytes};
  REQUIRE(io_uring_register_buffers(&ring, &buffer, 1) == 0);
  for (uint32_t round = 0; round < 3; ++round) {
    churn(48 * kMiB);
    io_uring_sqe* entry = io_uring_get_sqe(&ring);
    io_uring_prep_read_fixed(entry, file, memory.begin, kMiB, 0, 0);
    REQUIRE(io_uring_submit_and_wait(&ring, 1) == 1);
    io_uring_cqe* done = nullptr;
    REQUIRE(io_uring_wait_cqe(&ring, &done) == 0 && done->res == static_cast<int>(kMiB));
    io_uring_cqe_seen(&ring, done);
    REQUIRE(is_filled(memory.part(0, 256), 20));
    fill(memory.part(0, 256), 21 + round);
  }
  // By a bare system call, and more than may be pinned.
  REQUIRE(io_uring_unregister_buffers(&ring) == 0);
  const Memory large = map_far(32 * kMiB);
  const iovec too_much{large.begin, large.bytes};
  errno = 0;
  REQUIRE(syscall(SYS_io_uring_register, ring.ring_fd, 0, &too_much, 1) == -1 && errno == ENOMEM);
  REQUIRE(io_uring_register_buffers(&ring, &too_much, 1) == -ENOMEM);
  io_uring_queue_exit(&ring);
  REQUIRE(munmap(memory.begin, memory.bytes) == 0);
  const Memory again = map_far(4 * kMiB);
  REQUIRE((uses_extents() || again.begin == memory.begin) && is_zero(again));
  fill(again, 30);
  push_out(again);  // no longer pinned
  REQUIRE(is_filled(again, 30));
}

void futex_wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load() == value) syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void futexes() {
  const Memory memory = map_far(kMiB);
  auto& turn = *reinterpret_cast<std::atomic<uint32_t>*>(memory.begin + 64 * kPage);
  constexpr uint32_t kTurns = 2000;
  const auto play = [&turn, memory](uint32_t mine) {
    for (;;) {
      uint32_t seen = turn.load();
      if (seen >= kTurns) return;
      if (seen % 2 != mine) {
        futex_wait_while(turn, seen);
        continue;
      }
      if (seen % 200 == 0) push_out(memory);  // the other thread waits on a remote page
      turn.store(seen + 1);
      syscall(SYS_futex, &turn, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
  };
  std::thread even(play, 0);
  std::thread odd(play, 1);
  even.join();
  odd.join();
  REQUIRE(turn.load() == kTurns);
}

Memory in_handler;
std::atomic<uint32_t> handled{0};

void on_alarm(int) {
  // A remote page, touched during another fault or a call of the shim.
  const size_t page = handled.fetch_add(1) * 37 % in_handler.pages();
  if (!is_filled(in_handler.part(page, 1), 40, page)) {
    constexpr char kWrong[] = "a wrong byte in the handler\n";
    (void)!write(2, kWrong, sizeof(kWrong) - 1);
    _exit(1);
  }
}

void signals() {
  in_handler = map_far(8 * kMiB);
  fill(in_handler, 40);
  struct sigaction action {};
  action.sa_handler = on_alarm;
  REQUIRE(sigaction(SIGALRM, &action, nullptr) == 0);  // no SA_RESTART: it must not affect faults
  const itimerval often{{0, 2000}, {0, 2000}};
  REQUIRE(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  for (int round = 0; round < 200 && (round < 5 || handled < 100); ++round) churn(24 * kMiB);
  const itimerval never{};
  REQUIRE(setitimer(ITIMER_REAL, &never, nullptr) == 0);
  REQUIRE(handled >= 100);
}

void threads_that_end() {
  for (uint32_t round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 8; ++i) {
      threads.emplace_back([seed = round * 8 + i] {
        const Memory memory = map_far(2 * kMiB);
        fill(memory, seed);
        auto* heap = new std::string(300'000, static_cast<char>('a' + seed % 26));
        REQUIRE(is_filled(memory, seed));
        for (const char letter : *heap) REQUIRE(letter == static_cast<char>('a' + seed % 26));
        delete heap;
        if (seed % 2 == 0) REQUIRE(munmap(memory.begin, memory.bytes) == 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// The library fills a heap block in its constructor, and checks it on request.
void library() {
  for (int round = 0; round < 5; ++round) {
    void* loaded = dlopen(FARPAGE_ALLOCATING_LIBRARY, RTLD_NOW);
    REQUIRE(loaded != nullptr);
    using Check = int();
    auto* check = reinterpret_cast<Check*>(dlsym(loaded, "bytes_are_right"));
    REQUIRE(check != nullptr && check() == 1);
    churn(32 * kMiB);
    REQUIRE(check() == 1 && dlclose(loaded) == 0);
  }
}

// Another process reads remote pages: prints their address, and waits.
void looked_at() {
  const Memory memory = map_far(kMiB);
  fill(memory, 50);
  push_out(memory);
  printf("%d %lu %lu\n", getpid(), reinterpret_cast<unsigned long>(memory.begin),
         static_cast<unsigned long>(word_of(50, 0)));
  fflush(stdout);
  char line[8];
  REQUIRE(fgets(line, sizeof(line), stdin) != nullptr);
  REQUIRE(is_filled(memory, 50));
}

}  // namespace

const std::vector<Scenario> kKernelScenarios = {
    {"direct-io", direct_io}, {"ring-buffers", ring_buffers}, {"futexes", futexes},
    {"signals", signals},     {"threads", threads_that_end},  {"library", library},
    {"looked-at", looked_at},
};

}  // namespace farpage::test
