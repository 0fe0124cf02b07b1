// forks: forks repeatedly while it changes its memory, and checks every byte on both sides.
//
//   forks SCENARIO PAGES ROUNDS SEED
//
// Each page holds a pattern of its number and version. The versions are in a small static array, so
// a child knows from its start what it must find. The process that checks last prints
// "wrong_pages N"; status 1 when a page was wrong.
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "far_memory.h"

extern char** environ;

namespace {

constexpr size_t kWords = 512;  // of a page
constexpr size_t kMaxPages = 1 << 16;

uint32_t versions[kMaxPages];  // 0: never written, zeros
volatile uint64_t* memory = nullptr;
size_t page_count = 0;

// splitmix64's finalizer: a wrong page, version or word gives other bytes.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

uint64_t word_of(size_t page, uint32_t version, size_t word) {
  return version == 0 ? 0 : mixed((uint64_t{version} << 32) + page * kWords + word + 1);
}

void write_page(size_t page, uint32_t version) {
  versions[page] = version;
  for (size_t i = 0; i < kWords; ++i) memory[page * kWords + i] = word_of(page, version, i);
}

bool is_right(size_t page) {
  for (size_t i = 0; i < kWords; ++i)
    if (memory[page * kWords + i] != word_of(page, versions[page], i)) return false;
  return true;
}

size_t wrong_pages() {
  size_t wrong = 0;
  for (size_t page = 0; page < page_count; ++page) {
    if (is_right(page)) continue;
    if (wrong++ == 0)
      fprintf(stderr, "pid %d: page %zu of version %u holds %#lx\n", getpid(), page, versions[page],
              static_cast<unsigned long>(memory[page * kWords]));
  }
  return wrong;
}

// Writes a new version to `count` random pages, or drops them.
void change(std::mt19937_64& random, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const size_t page = random() % page_count;
    if (random() % 16 == 0) {
      versions[page] = 0;
      madvise(const_cast<uint64_t*>(memory + page * kWords), kWords * 8, MADV_DONTNEED);
    } else {
      write_page(page, static_cast<uint32_t>(random()) | 1U);
    }
  }
}

// The child continues with its own random numbers.
pid_t fork_or_exit(std::mt19937_64& random) {
  const uint64_t childs_seed = random();
  const pid_t child = fork();
  if (child == 0) random.seed(childs_seed);
  if (child < 0) {
    perror("fork");
    exit(2);
  }
  return child;
}

size_t wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  fprintf(stderr, "child %d ended with status %#x\n", child, static_cast<unsigned>(status));
  return 1;
}

[[noreturn]] void end_child(size_t wrong) {
  _exit(wrong == 0 ? 0 : 1);
}

// A child checks what it inherited, changes it, and checks again.
size_t live(std::mt19937_64& random) {
  size_t wrong = wrong_pages();
  change(random, page_count / 4);
  wrong += wrong_pages();
  return wrong;
}

size_t rounds(std::mt19937_64& random, size_t count) {
  size_t wrong = 0;
  for (size_t round = 0; round < count; ++round) {
    change(random, page_count / 4);
    const pid_t child = fork_or_exit(random);
    if (child == 0) end_child(live(random));
    change(random, page_count / 4);
    wrong += wrong_pages();
    wrong += wait_for(child);
  }
  return wrong;
}

// Each generation forks the next, changes its memory while that one runs, and checks.
size_t nested(std::mt19937_64& random, size_t generations) {
  change(random, page_count / 2);
  if (generations == 0) return wrong_pages();
  const pid_t child = fork_or_exit(random);
  if (child == 0) end_child(nested(random, generations - 1));
  change(random, page_count / 2);
  size_t wrong = wrong_pages();
  const pid_t second = fork_or_exit(random);
  if (second == 0) end_child(live(random));
  wrong += wait_for(second);
  wrong += wait_for(child);
  return wrong + wrong_pages();
}

// Each generation ends as soon as it has forked the next; the last one prints the result.
size_t orphans(std::mt19937_64& random, size_t generations) {
  for (size_t i = 0; i < generations; ++i) {
    change(random, page_count / 4);
    if (fork_or_exit(random) != 0) _exit(0);
    usleep(20'000);  // the parent and its pager have ended
    if (const size_t wrong = live(random); wrong != 0) return wrong;
  }
  return 0;
}

// Children that only exec, and one that execs after it has used its memory.
size_t exec(std::mt19937_64& random, size_t count) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = fork_or_exit(random);
    if (child == 0) {
      if (i % 4 == 3 && live(random) != 0) _exit(1);
      execl("/bin/true", "true", nullptr);
      _exit(3);
    }
    change(random, 16);
    wrong += wait_for(child);
    if (i % 8 == 7) wrong += wrong_pages();
  }
  return wrong + wrong_pages();
}

size_t spawn(std::mt19937_64& random, size_t count) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    change(random, 16);
    pid_t child = -1;
    char program[] = "/bin/true";
    char* arguments[] = {program, nullptr};
    if (posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) return 1;
    wrong += wait_for(child);
  }
  return wrong + wrong_pages();
}

// Other threads fault, write and unmap memory while this one forks.
size_t threads(std::mt19937_64& random, size_t count) {
  constexpr size_t kOwnPages = 64;
  std::atomic<bool> stop{false};
  std::atomic<size_t> wrong{0};
  std::vector<std::thread> busy;
  for (size_t t = 0; t < 3; ++t) {
    busy.emplace_back([&, t] {
      std::mt19937_64 own(t);
      while (!stop.load()) {
        // Memory that is mapped and unmapped, beside pages that all processes only read.
        void* mapped = farpage::test::map_far(kOwnPages * kWords * 8).begin;
        auto* words = static_cast<volatile uint64_t*>(mapped);
        for (size_t page = 0; page < kOwnPages; ++page) wrong += words[page * kWords] != 0;
        for (size_t page = 0; page < kOwnPages; ++page) words[page * kWords] = own();
        for (size_t i = 0; i < 32; ++i) wrong += !is_right(own() % page_count);
        munmap(mapped, kOwnPages * kWords * 8);
      }
    });
  }
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = fork_or_exit(random);
    if (child == 0) {
      std::vector<uint64_t> fresh(1 << 16);
      for (const uint64_t word : fresh) wrong += word != 0;
      end_child(live(random));
    }
    wrong += wait_for(child);
  }
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  return wrong + wrong_pages();
}

// Children that are killed at random moments.
size_t killed(std::mt19937_64& random, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const pid_t child = fork_or_exit(random);
    if (child == 0) {
      for (;;) live(random);
    }
    change(random, 64);
    usleep(static_cast<useconds_t>(random() % 30'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return wrong_pages();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const std::string scenario = arguments[1];
  page_count = strtoul(arguments[2], nullptr, 10);
  const size_t times = strtoul(arguments[3], nullptr, 10);
  std::mt19937_64 random(strtoul(arguments[4], nullptr, 10));
  if (page_count == 0 || page_count > kMaxPages) return 2;
  memory = reinterpret_cast<uint64_t*>(farpage::test::map_far(page_count * kWords * 8).begin);
  change(random, page_count * 2);
  size_t wrong = 0;
  if (scenario == "rounds") wrong = rounds(random, times);
  if (scenario == "nested") wrong = nested(random, times);
  if (scenario == "orphans") wrong = orphans(random, times);
  if (scenario == "exec") wrong = exec(random, times);
  if (scenario == "spawn") wrong = spawn(random, times);
  if (scenario == "threads") wrong = threads(random, times);
  if (scenario == "killed") wrong = killed(random, times);
  printf("wrong_pages %zu\n", wrong);
  fflush(stdout);
  char line[8];
  if (fgets(line, sizeof line, stdin) == nullptr) return wrong == 0 ? 0 : 1;
  return wrong == 0 ? 0 : 1;
}
