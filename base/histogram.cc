#include "base/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace farpage {

void Histogram::mark(size_t bucket) {
  const uint64_t octave = octave_of(bucket);
  if ((octaves_.load(std::memory_order_relaxed) & octave) == 0)
    octaves_.fetch_or(octave, std::memory_order_relaxed);
}

void Histogram::add(size_t bucket, uint64_t values) {
  counts_[bucket].fetch_add(values, std::memory_order_relaxed);
  mark(bucket);
}

void Histogram::set(size_t bucket, uint64_t values) {
  if (bucket_count(bucket) == values) return;
  counts_[bucket].store(values, std::memory_order_relaxed);
  mark(bucket);
}

size_t Histogram::bucket_of(uint64_t value_ns) {
  constexpr uint64_t kMax = (uint64_t{1} << kMaxBits) - 1;
  const uint64_t value = std::min(value_ns, kMax);
  if (value < (uint64_t{1} << kSubBits)) return value;
  const auto octave = static_cast<unsigned>(std::bit_width(value)) - 1 - kSubBits;
  const uint64_t sub = (value >> octave) - (uint64_t{1} << kSubBits);
  return ((static_cast<size_t>(octave) + 1) << kSubBits) + sub;
}

uint64_t Histogram::upper_edge_ns(size_t index) {
  if (index < (size_t{1} << kSubBits)) return index;
  const size_t octave = (index >> kSubBits) - 1;
  const uint64_t sub = index & ((size_t{1} << kSubBits) - 1);
  return (((uint64_t{1} << kSubBits) + sub + 1) << octave) - 1;
}

void Histogram::record(uint64_t value_ns) {
  add(bucket_of(value_ns), 1);
  sum_ns_.fetch_add(value_ns, std::memory_order_relaxed);
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) {
    const uint64_t n = other.bucket_count(i);
    if (n != 0) add(i, n);
  }
  sum_ns_.fetch_add(other.sum_ns(), std::memory_order_relaxed);
}

Histogram& Histogram::operator=(const Histogram& other) {
  if (this == &other) return *this;
  for (size_t i = 0; i < kBuckets; ++i) set(i, other.bucket_count(i));
  sum_ns_.store(other.sum_ns(), std::memory_order_relaxed);
  return *this;
}

Histogram Histogram::since(const Histogram& earlier) const {
  Histogram difference;
  for (size_t i = 0; i < kBuckets; ++i)
    difference.set(i, bucket_count(i) - earlier.bucket_count(i));
  difference.sum_ns_.store(sum_ns() - earlier.sum_ns(), std::memory_order_relaxed);
  return difference;
}

uint64_t Histogram::count() const {
  uint64_t total = 0;
  for (size_t i = 0; i < kBuckets; ++i) total += bucket_count(i);
  return total;
}

double Histogram::mean_ns() const {
  const uint64_t values = count();
  return values == 0 ? 0.0 : static_cast<double>(sum_ns()) / static_cast<double>(values);
}

double Histogram::stddev_ns() const {
  const double mean = mean_ns();
  double squares = 0;
  uint64_t total = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    const uint64_t n = bucket_count(i);
    if (n == 0) continue;
    const double distance = static_cast<double>(upper_edge_ns(i)) - mean;
    squares += distance * distance * static_cast<double>(n);
    total += n;
  }
  return total < 2 ? 0.0 : std::sqrt(squares / static_cast<double>(total));
}

uint64_t Histogram::percentile_ns(double percent) const {
  const uint64_t total = count();
  if (total == 0) return 0;
  const double share = std::clamp(percent, 0.0, 100.0) / 100.0;
  const auto rank =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(share * static_cast<double>(total))));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += bucket_count(i);
    if (seen >= rank) return upper_edge_ns(i);
  }
  return upper_edge_ns(kBuckets - 1);
}

LatencySummary Histogram::summary() const {
  return {.count = count(),
          .mean_ns = mean_ns(),
          .p50_ns = percentile_ns(50),
          .p99_ns = percentile_ns(99),
          .p999_ns = percentile_ns(99.9),
          .max_ns = max_ns()};
}

void Histogram::cumulate(std::span<const uint64_t> edges_ns, std::span<uint64_t> counts) const {
  uint64_t seen = 0;
  size_t next = 0;
  for (size_t i = 0; i < edges_ns.size(); ++i) {
    for (const size_t end = bucket_of(edges_ns[i]) + 1; next < end; ++next)
      seen += bucket_count(next);
    counts[i] = seen;
  }
}

}  // namespace farpage
