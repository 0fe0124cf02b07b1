#include "kv/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "kv/content.h"
#include "kv/store.h"

namespace kv {
namespace {

using Instant = std::chrono::steady_clock::time_point;

// For rounding to size classes, and partly filled chunks.
constexpr uint64_t kRoomPercent = 135;
constexpr uint64_t kSpareBytes = uint64_t{16} << 20;
// In the warm-up, one operation in this many writes the next version of its key.
constexpr uint64_t kUpdateEvery = 10;

// Deterministic: a key has the same size in every phase, without a table.
uint64_t size_of(uint64_t key, const BenchOptions& options) {
  std::mt19937_64 random(options.seed ^ (key * 0x9E3779B97F4A7C15ULL));
  uint64_t low = options.min_value_bytes;
  std::vector<uint64_t> octaves;
  while (low * 2 <= options.max_value_bytes) {
    octaves.push_back(low);
    low *= 2;
  }
  octaves.push_back(low);
  const uint64_t from = octaves[random() % octaves.size()];
  const uint64_t to = std::min(from * 2 - 1, options.max_value_bytes);
  return from + random() % (to - from + 1);
}

std::string name_of(uint64_t key) {
  return "key-" + std::to_string(key);
}

// One thread's share of every phase. Threads: one at a time.
class Worker {
 public:
  Worker(std::pmr::memory_resource& memory, const Clock& clock, const BenchOptions& options,
         uint32_t index)
      : options_(options),
        store_(memory, clock),
        first_(options.values * index / options.threads),
        end_(options.values * (index + 1) / options.threads),
        reads_(options.reads / options.threads),
        versions_(end_ - first_),
        random_(options.seed + index) {}

  void fill() {
    for (uint64_t key = first_; key < end_; ++key) put(key);
  }
  void warm_up() {
    for (uint64_t i = 0; i < reads_ / 2; ++i)
      i % kUpdateEvery == 0 ? put(any_key()) : get(any_key());
  }
  void read() {
    for (uint64_t i = 0; i < reads_; ++i) get(any_key());
  }
  void verify() {
    for (uint64_t key = first_; key < end_; ++key) get(key);
  }
  void remove() {
    for (uint64_t key = first_; key < end_; ++key) {
      const std::string name = name_of(key);
      const bool right = timed([&] { return store_.remove(name) && !store_.get(name); });
      right ? ++result_.verified : ++result_.wrong;
    }
  }

  // The counts of the phase, after its end.
  PhaseResult take(std::vector<uint64_t>& latencies_ns) {
    latencies_ns.insert(latencies_ns.end(), latencies_ns_.begin(), latencies_ns_.end());
    latencies_ns_.clear();
    return std::exchange(result_, {});
  }
  uint64_t value_bytes() const { return store_.value_bytes(); }
  const std::string& problem() const { return problem_; }

 private:
  uint64_t any_key() { return first_ + random_() % (end_ - first_); }

  template <typename Operation>
  bool timed(Operation&& operation) {
    const Instant start = std::chrono::steady_clock::now();
    const bool right = operation();
    const auto took = std::chrono::steady_clock::now() - start;
    latencies_ns_.push_back(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()));
    ++result_.operations;
    return right;
  }

  void put(uint64_t key) {
    const std::string name = name_of(key);
    buffer_.resize(size_of(key, options_));
    fill_content(name, versions_[key - first_] + 1, buffer_);
    PutResult outcome = PutResult::kStored;
    const bool stored = timed([&] {
      outcome = store_.put(name, buffer_);
      return outcome == PutResult::kStored;
    });
    if (!stored) {
      ++result_.wrong;
      problem_ = name + ": " + std::string(to_string(outcome));
      return;
    }
    ++versions_[key - first_];
    result_.bytes += buffer_.size();
  }

  void get(uint64_t key) {
    const std::string name = name_of(key);
    size_t bytes = 0;
    // The check is timed, because it is what reads the value.
    const bool right = timed([&] {
      const auto value = store_.get(name);
      bytes = value ? value->size() : 0;
      return value && bytes == size_of(key, options_) &&
             holds_content(name, versions_[key - first_], *value);
    });
    result_.bytes += bytes;
    right ? ++result_.verified : ++result_.wrong;
  }

  const BenchOptions& options_;
  Store store_;
  const uint64_t first_;
  const uint64_t end_;
  const uint64_t reads_;
  std::vector<uint32_t> versions_;
  std::mt19937_64 random_;
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> latencies_ns_;
  PhaseResult result_;
  std::string problem_;
};

double percentile_us(std::vector<uint64_t>& sorted_ns, double percent) {
  if (sorted_ns.empty()) return 0;
  const auto last = static_cast<double>(sorted_ns.size() - 1);
  return static_cast<double>(sorted_ns[static_cast<size_t>(last * percent / 100)]) / 1000;
}

using Workers = std::vector<std::unique_ptr<Worker>>;

PhaseResult run_phase(const std::string& name, Workers& workers, void (Worker::*phase)()) {
  const Instant start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (const auto& worker : workers)
      threads.emplace_back([&worker, phase] { ((*worker).*phase)(); });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  PhaseResult sum;
  sum.name = name;
  sum.seconds = took.count();
  std::vector<uint64_t> latencies_ns;
  for (const auto& worker : workers) {
    const PhaseResult part = worker->take(latencies_ns);
    sum.operations += part.operations;
    sum.bytes += part.bytes;
    sum.verified += part.verified;
    sum.wrong += part.wrong;
  }
  std::sort(latencies_ns.begin(), latencies_ns.end());
  sum.p50_us = percentile_us(latencies_ns, 50);
  sum.p99_us = percentile_us(latencies_ns, 99);
  return sum;
}

}  // namespace

bool BenchResult::all_right() const {
  return std::all_of(phases.begin(), phases.end(),
                     [](const PhaseResult& phase) { return phase.wrong == 0; });
}

uint64_t region_bytes(const BenchOptions& options) {
  uint64_t bytes = 0;
  for (uint64_t key = 0; key < options.values; ++key) bytes += size_of(key, options);
  // During a replacement, each thread holds the old and the new value.
  return bytes * kRoomPercent / 100 + options.threads * options.max_value_bytes + kSpareBytes;
}

farpage::RegionResult<BenchResult> run_bench(
    const BenchOptions& options, farpage::Region& region,
    const std::function<void(const std::string& phase)>& begins) {
  const SteadyClock clock;
  farpage::RegionMemory memory(region);
  BenchResult result;
  Workers workers;
  for (uint32_t i = 0; i < options.threads; ++i)
    workers.push_back(std::make_unique<Worker>(memory, clock, options, i));
  const auto run = [&](const std::string& name, void (Worker::*phase)()) {
    begins(name);
    result.phases.push_back(run_phase(name, workers, phase));
  };
  run("fill", &Worker::fill);
  for (const auto& worker : workers) {
    if (!worker->problem().empty())
      return farpage::RegionError{farpage::RegionErrorCode::kExhausted, worker->problem()};
    result.value_bytes += worker->value_bytes();
  }
  run("warm-up", &Worker::warm_up);
  run("read", &Worker::read);
  run("verify", &Worker::verify);
  result.after_verify = region.stats();
  run("delete", &Worker::remove);
  result.allocated_after_delete = memory.stats().allocated_bytes;
  return result;
}

}  // namespace kv
