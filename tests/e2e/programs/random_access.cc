// random_access: touches memory at random and checks every byte that it reads.
//
//   random_access BYTES THREADS SECONDS [SEED]
//
// Fills BYTES with a distinct pattern for each page and version, then reads and rewrites random
// pages from THREADS threads for SECONDS, or until SIGUSR1. Each thread has its own pages, so the
// content of each page is known. Prints its resident memory before the fill, "filled", then
// "operations N wrong_bytes N" and "longest_ms N", of one page; status 1 when a byte was wrong.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kWords = 512;  // of a page

std::atomic<bool> enough{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

struct Settings {
  size_t pages = 0;
  size_t threads = 1;
  std::chrono::seconds time{0};
  uint64_t seed = 0;
};

struct Page {
  uint64_t words[kWords];
};

// splitmix64's finalizer: a wrong page, version or word gives other bytes.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Memory {
 public:
  explicit Memory(const Settings& settings)
      : settings_(settings), versions_(map<uint32_t>(settings.pages, MAP_SHARED)) {
    // Shared memory stays local, and is resident before the baseline is taken.
    for (size_t page = 0; page < settings.pages; ++page) versions_[page] = 1;
  }
  void take() { pages_ = map<Page>(settings_.pages, MAP_PRIVATE); }

  void write(size_t page, uint32_t version) {
    versions_[page] = version;
    for (size_t i = 0; i < kWords; ++i) pages_[page].words[i] = expected(page, i);
  }
  void rewrite(size_t page) { write(page, versions_[page] + 1); }

  uint64_t wrong_bytes(size_t page) const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < kWords; ++i) {
      uint64_t difference = pages_[page].words[i] ^ expected(page, i);
      for (; difference != 0; difference >>= 8) wrong += (difference & 0xff) != 0;
    }
    return wrong;
  }

 private:
  template <typename T>
  static T* map(size_t count, int sharing) {
    void* address =
        ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      std::perror("random_access: mmap");
      std::exit(2);
    }
    return static_cast<T*>(address);
  }
  uint64_t expected(size_t page, size_t word) const {
    return mixed(settings_.seed + mixed((page << 32 | versions_[page]) + mixed(word)));
  }

  const Settings settings_;
  uint32_t* versions_;
  Page* pages_ = nullptr;
};

struct Totals {
  std::atomic<uint64_t> operations{0};
  std::atomic<uint64_t> wrong_bytes{0};
  std::atomic<int64_t> longest_ms{0};  // of one operation
};

void access(Memory& memory, const Settings& settings, size_t thread, Totals& totals) {
  std::mt19937_64 random(settings.seed + thread);
  const size_t own_pages = (settings.pages - thread + settings.threads - 1) / settings.threads;
  auto now = std::chrono::steady_clock::now();
  const auto end = now + settings.time;
  auto longest = now - now;
  uint64_t operations = 0;
  uint64_t wrong = 0;
  while (now < end && !enough) {
    const auto start = now;
    const size_t page = thread + settings.threads * (random() % own_pages);
    wrong += memory.wrong_bytes(page);
    if (random() % 4 == 0) memory.rewrite(page);
    ++operations;
    now = std::chrono::steady_clock::now();
    longest = std::max(longest, now - start);
  }
  for (size_t page = thread; page < settings.pages; page += settings.threads)
    wrong += memory.wrong_bytes(page);
  totals.operations += operations;
  totals.wrong_bytes += wrong;
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
  int64_t known = totals.longest_ms;
  while (ms > known && !totals.longest_ms.compare_exchange_weak(known, ms)) {
  }
}

void access_from_all_threads(Memory& memory, const Settings& settings, Totals& totals) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < settings.threads; ++i)
    threads.emplace_back([&, i] { access(memory, settings, i, totals); });
  for (std::thread& thread : threads) thread.join();
}

long resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    long kilobytes = 0;
    if (name == "VmRSS:" && status >> kilobytes) return kilobytes;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: random_access BYTES THREADS SECONDS [SEED]\n");
    return 2;
  }
  Settings settings;
  settings.pages = std::strtoull(argv[1], nullptr, 10) / sizeof(Page);
  settings.threads = std::strtoull(argv[2], nullptr, 10);
  settings.time = std::chrono::seconds(std::atoi(argv[3]));
  settings.seed = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1;
  if (settings.threads == 0 || settings.pages < settings.threads) {
    std::fprintf(stderr, "random_access: at least one page for each of at least one thread\n");
    return 2;
  }
  std::signal(SIGUSR1, [](int) { enough = true; });
  // Once with little memory, so that code and stacks are resident when the baseline is taken.
  Settings little = settings;
  little.pages = settings.threads;
  little.time = std::chrono::seconds(0);
  Memory little_memory(little);
  little_memory.take();
  for (size_t page = 0; page < little.pages; ++page) little_memory.write(page, 1);
  Totals unused;
  access_from_all_threads(little_memory, little, unused);

  Memory memory(settings);
  std::printf("baseline_kilobytes %ld\n", resident_kilobytes());
  std::fflush(stdout);
  memory.take();
  for (size_t page = 0; page < settings.pages; ++page) memory.write(page, 1);
  std::puts("filled");
  std::fflush(stdout);
  Totals totals;
  access_from_all_threads(memory, settings, totals);
  std::printf("operations %lu wrong_bytes %lu\n", totals.operations.load(),
              totals.wrong_bytes.load());
  std::printf("longest_ms %ld\n", totals.longest_ms.load());
  return totals.wrong_bytes == 0 ? 0 : 1;
}
