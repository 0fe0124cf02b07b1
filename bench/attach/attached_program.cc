// The program of attach.py: it does the same work under `farpage run` and when it is attached.
//
//   attached_program touch MIB     for each line of standard input, N: N touches of random pages,
//                                  half of them writes; each page is checked. Prints the times of
//                                  those that were absent (mincore(2)).
//   attached_program turn THREADS  threads that turn: half of them sleep a millisecond in each
//   turn.
//                                  For each line prints the longest time between two turns since
//                                  the line before, of those that sleep and of those that do not.
//
// Prints "ready", and one JSON object for each line; status 1 when a page is wrong.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/strong.h"

namespace {

using farpage::Histogram;
using farpage::Instant;
using farpage::kPageBytes;
using farpage::SteadyClock;

constexpr uint64_t kWords = kPageBytes / sizeof(uint64_t);

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// ---- touch ----

uint64_t word_of(uint64_t page, uint64_t version) {
  return (page * 0x9e3779b97f4a7c15U) ^ (version << 40);
}

int touch(uint64_t mebibytes) {
  const uint64_t pages = (mebibytes << 20) / kPageBytes;
  void* memory =
      ::mmap(nullptr, mebibytes << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto* words = static_cast<uint64_t*>(memory);
  const auto stamp = [words](uint64_t page, uint64_t version) {
    words[page * kWords] = version;
    for (uint64_t i = 1; i < kWords; ++i) words[page * kWords + i] = word_of(page, version) + i;
  };
  const auto is_right = [words](uint64_t page) {
    const uint64_t version = words[page * kWords];
    const uint64_t last = kWords - 1;
    return words[page * kWords + last] == word_of(page, version) + last;
  };
  for (uint64_t page = 0; page < pages; ++page) stamp(page, 1);
  say("ready");
  std::mt19937_64 random(7);
  uint64_t wrong = 0;
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto faults = std::make_unique<Histogram>();
    const uint64_t touches = std::strtoull(line.c_str(), nullptr, 10);
    for (uint64_t i = 0; i < touches; ++i) {
      const uint64_t page = random() % pages;
      volatile uint64_t* at = words + page * kWords;
      const bool writes = random() % 2 == 0;
      unsigned char present = 0;
      (void)::mincore(words + page * kWords, kPageBytes, &present);
      const Instant start = SteadyClock::read();
      (void)*at;
      const auto took = SteadyClock::read() - start;
      if ((present & 1) == 0) faults->record(static_cast<uint64_t>(took.count()));
      wrong += is_right(page) ? 0 : 1;
      if (writes) stamp(page, words[page * kWords] + 1);
    }
    const farpage::LatencySummary summary = faults->summary();
    say(fmt::format(R"({{"faults": {}, "p50_ns": {}, "p99_ns": {}, "wrong": {}}})", summary.count,
                    summary.p50_ns, summary.p99_ns, wrong));
  }
  return wrong == 0 ? 0 : 1;
}

// ---- turn ----

struct alignas(64) Turner {
  std::atomic<int64_t> longest_ns{0};
  std::atomic<int64_t> stopped_ns{0};
  bool sleeps = false;
};

void note(std::atomic<int64_t>& longest, int64_t value) {
  int64_t known = longest.load(std::memory_order_relaxed);
  while (value > known && !longest.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

// One that is preempted has not been stopped: only who waits gives its CPU up of its own accord.
int64_t times_waited() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

void turn(Turner& turner, const std::atomic<bool>& over) {
  constexpr int64_t kLongNs = 500'000;
  int64_t waited = times_waited();
  Instant last = SteadyClock::read();
  while (!over.load(std::memory_order_relaxed)) {
    if (turner.sleeps) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Instant now = SteadyClock::read();
    const int64_t gap_ns = (now - last).count();
    note(turner.longest_ns, gap_ns);
    if (!turner.sleeps && gap_ns > kLongNs) {
      const int64_t waited_now = times_waited();
      if (waited_now != waited) note(turner.stopped_ns, gap_ns);
      waited = waited_now;
    }
    last = now;
  }
}

int turn_all(size_t threads) {
  std::vector<Turner> turners(threads);
  std::atomic<bool> over{false};
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) {
    turners[i].sleeps = i % 2 == 0;
    running.emplace_back([&, i] { turn(turners[i], over); });
  }
  say("ready");
  std::string line;
  while (std::getline(std::cin, line)) {
    int64_t turning = 0;
    int64_t sleeping = 0;
    int64_t stopped = 0;
    for (Turner& turner : turners) {
      int64_t& longest = turner.sleeps ? sleeping : turning;
      longest = std::max(longest, turner.longest_ns.exchange(0));
      stopped = std::max(stopped, turner.stopped_ns.exchange(0));
    }
    say(fmt::format(R"({{"turning_ns": {}, "stopped_ns": {}, "sleeping_ns": {}}})", turning,
                    stopped, sleeping));
  }
  over = true;
  for (std::thread& thread : running) thread.join();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const uint64_t number = std::strtoull(arguments[2], nullptr, 10);
  if (std::strcmp(arguments[1], "touch") == 0) return touch(number);
  if (std::strcmp(arguments[1], "turn") == 0) return turn_all(number);
  return 2;
}
