// Histogram: log-linear counts of nanoseconds, as HdrHistogram (Gil Tene, hdrhistogram.org) lays
// them out: each power of two is split into 128 equal buckets, so the error of a value is below
// 1 %, from 1 ns to 2^42 ns (73 minutes), in a fixed 36 KiB.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace farpage {

// The figures of a histogram for a report, in 48 bytes.
struct LatencySummary {
  uint64_t count = 0;
  double mean_ns = 0;
  uint64_t p50_ns = 0, p99_ns = 0, p999_ns = 0, max_ns = 0;
};

// Threads: any. record() costs two atomic additions; readers see a recent state. Only octaves with
// values are read: memory of others that the kernel has not given yet stays so.
class Histogram {
 public:
  static constexpr unsigned kSubBits = 7;   // 128 buckets an octave: below 0.8 % error
  static constexpr unsigned kMaxBits = 42;  // larger values are counted as the largest
  static constexpr size_t kBuckets = (kMaxBits - kSubBits + 1) << kSubBits;

  Histogram() = default;
  Histogram(const Histogram& other) { merge(other); }
  Histogram& operator=(const Histogram& other);

  void record(uint64_t value_ns);
  void merge(const Histogram& other);
  // The values recorded since `earlier`, an older copy of this one.
  Histogram since(const Histogram& earlier) const;

  uint64_t count() const;
  uint64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }
  double mean_ns() const;
  double stddev_ns() const;
  // Upper edge of the bucket that holds the given share (0..100) of the values; 0 when empty.
  uint64_t percentile_ns(double percent) const;
  uint64_t min_ns() const { return percentile_ns(0); }
  uint64_t max_ns() const { return percentile_ns(100); }
  LatencySummary summary() const;
  // counts[i] = values up to edges_ns[i], within the error of a bucket. Edges ascend.
  void cumulate(std::span<const uint64_t> edges_ns, std::span<uint64_t> counts) const;

  // For export: bucket i holds values in (upper_edge_ns(i - 1), upper_edge_ns(i)].
  uint64_t bucket_count(size_t index) const {
    return (octaves_.load(std::memory_order_relaxed) & octave_of(index)) == 0
               ? 0
               : counts_[index].load(std::memory_order_relaxed);
  }
  static size_t bucket_of(uint64_t value_ns);
  static uint64_t upper_edge_ns(size_t index);

 private:
  static constexpr uint64_t octave_of(size_t bucket) { return uint64_t{1} << (bucket >> kSubBits); }
  void add(size_t bucket, uint64_t values);
  void set(size_t bucket, uint64_t values);
  void mark(size_t bucket);

  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
  std::atomic<uint64_t> octaves_{0};  // bits: those that may have values
};

}  // namespace farpage
