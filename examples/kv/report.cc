#include "kv/report.h"

#include <array>
#include <cinttypes>
#include <cstdio>

namespace kv {
namespace {

template <typename... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

double per_second(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : 0;
}

double mebibytes(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

std::string format_text(const BenchResult& result) {
  const farpage::RegionStats& region = result.after_verify;
  std::string text = print("%-10s%12s%12s%12s%12s%12s%12s%10s\n", "phase", "operations", "ops/s",
                           "MiB/s", "p50 us", "p99 us", "verified", "wrong");
  for (const PhaseResult& phase : result.phases)
    text += print("%-10s%12" PRIu64 "%12.0f%12.1f%12.1f%12.1f%12" PRIu64 "%10" PRIu64 "\n",
                  phase.name.c_str(), phase.operations,
                  per_second(static_cast<double>(phase.operations), phase.seconds),
                  per_second(mebibytes(phase.bytes), phase.seconds), phase.p50_us, phase.p99_us,
                  phase.verified, phase.wrong);
  text +=
      print("\nvalues %.1f MiB, local budget %.1f MiB, over %s\n", mebibytes(result.value_bytes),
            mebibytes(region.local_bytes), region.transports.c_str());
  text += print("remote faults %" PRIu64 ", prefetched %" PRIu64 ", evicted %" PRIu64
                " written and %" PRIu64 " clean, failed %" PRIu64 "\n",
                region.faults_remote, region.prefetched, region.evicted_written,
                region.evicted_clean, region.faults_failed);
  return text;
}

std::string format_json(const BenchResult& result) {
  const farpage::RegionStats& region = result.after_verify;
  std::string text = "{\"phases\": [";
  for (const PhaseResult& phase : result.phases) {
    if (&phase != &result.phases.front()) text += ", ";
    text += print("{\"name\": \"%s\", \"operations\": %" PRIu64
                  ", \"seconds\": %.6f, \"bytes\": %" PRIu64
                  ", \"operations_per_s\": %.1f, \"p50_us\": %.3f, \"p99_us\": %.3f, "
                  "\"verified\": %" PRIu64 ", \"wrong\": %" PRIu64 "}",
                  phase.name.c_str(), phase.operations, phase.seconds, phase.bytes,
                  per_second(static_cast<double>(phase.operations), phase.seconds), phase.p50_us,
                  phase.p99_us, phase.verified, phase.wrong);
  }
  text +=
      print("], \"value_bytes\": %" PRIu64 ", \"local_bytes\": %" PRIu64
            ", \"transports\": \"%s\", \"faults_remote\": %" PRIu64 ", \"prefetched\": %" PRIu64
            ", \"evicted_written\": %" PRIu64 ", \"evicted_clean\": %" PRIu64,
            result.value_bytes, region.local_bytes, region.transports.c_str(), region.faults_remote,
            region.prefetched, region.evicted_written, region.evicted_clean);
  text += print(", \"faults_failed\": %" PRIu64 ", \"allocated_after_delete\": %" PRIu64 "}\n",
                region.faults_failed, result.allocated_after_delete);
  return text;
}

}  // namespace kv
