#include "cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/size.h"

namespace farpage::cli {
namespace {

double microseconds(uint64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

nlohmann::json json_of(const Histogram& histogram) {
  return {{"count", histogram.count()},
          {"mean_us", histogram.mean_ns() / 1000.0},
          {"p50_us", microseconds(histogram.percentile_ns(50))},
          {"p99_us", microseconds(histogram.percentile_ns(99))},
          {"p999_us", microseconds(histogram.percentile_ns(99.9))},
          {"max_us", microseconds(histogram.max_ns())}};
}

std::string line_of(const char* name, const Histogram& histogram) {
  if (histogram.count() == 0) return {};
  return fmt::format("  {:<24}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n", name,
                     microseconds(histogram.percentile_ns(50)),
                     microseconds(histogram.percentile_ns(99)),
                     microseconds(histogram.percentile_ns(99.9)), microseconds(histogram.max_ns()));
}

std::string count_line(const char* name, uint64_t count, const std::string& more = "") {
  return fmt::format("  {:<24}{:>12}{}{}\n", name, count, more.empty() ? "" : "  ", more);
}

std::string transports_of(const pager::PagerStats& stats) {
  const std::string names = names_of_transports(stats);
  return names.empty() ? "none" : names;
}

std::string format_target(const TargetReport& target) {
  const pager::PagerStats& stats = target.stats;
  std::string text = fmt::format("farpage: {} (pid {}) over {}, {} local, {} slabs borrowed\n",
                                 target.program, target.pid, transports_of(stats),
                                 format_size(stats.budget_pages * kPageBytes), stats.leased_slabs);
  text += count_line("remote faults", stats.faults_remote,
                     fmt::format("{} read", format_size(stats.read_bytes)));
  text += count_line("prefetched pages", stats.prefetch_pages);
  text += count_line("zero-fill faults", stats.faults_zero,
                     fmt::format("{} pages of zeros placed ahead", stats.zeros_ahead));
  text += count_line("first-write faults", stats.faults_write);
  text += count_line(
      "evictions", stats.evictions(),
      fmt::format("{} written back, {} clean, {} all zero; {} sent", stats.evicted_written,
                  stats.evicted_clean, stats.evicted_zero, format_size(stats.write_bytes)));
  if (stats.faults_failed > 0) text += count_line("FAILED FAULTS", stats.faults_failed, "SIGBUS");
  if (stats.retries > 0) text += count_line("retried READs", stats.retries);
  if (stats.replicas_lost > 0) text += count_line("replicas lost", stats.replicas_lost);
  text += fmt::format("  {:<24}{:>12}{:>12}{:>12}{:>12}\n", "microseconds", "p50", "p99", "p99.9",
                      "max");
  text += line_of("remote fault", stats.fault_ns);
  text += line_of("  until posted", stats.queue_ns);
  text += line_of("  on the wire", stats.wire_ns);
  text += line_of("  install and wake", stats.install_ns);
  text += line_of("zero-fill fault", stats.zero_ns);
  text += line_of("eviction batch", stats.evict_batch_ns);
  return text;
}

}  // namespace

std::string format_report(const std::vector<TargetReport>& targets) {
  if (targets.empty()) return "farpage: no process took far memory (did the program ever start?)\n";
  std::string text;
  size_t small = 0;
  for (const TargetReport& target : targets) {
    if (target.stats.evictions() == 0 && targets.size() > 1) {
      ++small;
    } else {
      text += format_target(target);
    }
  }
  if (small > 0)
    text += fmt::format("farpage: {} more {} stayed within the local budget\n", small,
                        small == 1 ? "process" : "processes");
  return text;
}

std::string json_report(const std::vector<TargetReport>& targets, int exit_status) {
  nlohmann::json list = nlohmann::json::array();
  for (const TargetReport& target : targets) {
    const pager::PagerStats& stats = target.stats;
    list.push_back({{"program", target.program},
                    {"pid", target.pid},
                    {"transports", transports_of(stats)},
                    {"local_bytes", stats.budget_pages * kPageBytes},
                    {"leased_slabs", stats.leased_slabs},
                    {"faults",
                     {{"remote", stats.faults_remote},
                      {"zero", stats.faults_zero},
                      {"write", stats.faults_write},
                      {"coalesced", stats.faults_coalesced},
                      {"rescued", stats.faults_rescued},
                      {"failed", stats.faults_failed},
                      {"waited_for_room", stats.faults_waited_room}}},
                    {"reads", stats.reads},
                    {"read_bytes", stats.read_bytes},
                    {"retries", stats.retries},
                    {"prefetched_pages", stats.prefetch_pages},
                    {"prefetch_failed_pages", stats.prefetch_failed_pages},
                    {"zero_pages_ahead", stats.zeros_ahead},
                    {"evictions",
                     {{"written", stats.evicted_written},
                      {"clean", stats.evicted_clean},
                      {"zero", stats.evicted_zero},
                      {"cancelled", stats.evictions_cancelled}}},
                    {"writes", stats.writes},
                    {"write_bytes", stats.write_bytes},
                    {"write_failures", stats.write_failures},
                    {"replicas_lost", stats.replicas_lost},
                    {"transport_fallbacks", stats.transport_fallbacks},
                    {"latency",
                     {{"remote_fault", json_of(stats.fault_ns)},
                      {"until_posted", json_of(stats.queue_ns)},
                      {"wire", json_of(stats.wire_ns)},
                      {"install", json_of(stats.install_ns)},
                      {"zero_fault", json_of(stats.zero_ns)},
                      {"evict_batch", json_of(stats.evict_batch_ns)}}}});
  }
  return nlohmann::json{{"exit_status", exit_status}, {"targets", list}}.dump(2) + "\n";
}

MemoryUse memory_use(const std::vector<TargetReport>& targets, uint64_t local_bytes,
                     uint64_t peak_bytes) {
  MemoryUse use{.local_bytes = local_bytes, .peak_bytes = peak_bytes};
  for (const TargetReport& target : targets) {
    const pager::PagerStats& stats = target.stats;
    // Of all that a page goes through, these come first.
    use.far_bytes += (stats.faults_zero + stats.zeros_ahead) * kPageBytes;
    // `farpage resize` may have changed it.
    use.local_bytes = std::max(use.local_bytes, stats.budget_pages * kPageBytes);
  }
  return use;
}

std::string local_memory_warning(const MemoryUse& use) {
  constexpr uint64_t kNextToNothing = 16;  // of the peak, one part in so many
  if (use.peak_bytes <= use.local_bytes || use.peak_bytes - use.local_bytes <= kMaxUnseenBytes)
    return {};
  if (use.far_bytes >= use.peak_bytes / kNextToNothing) return {};
  return fmt::format(
      "farpage: the program had up to {} MiB resident with --local {}, and only {} MiB of its "
      "memory "
      "became far; what is mapped by system calls of its own (Go without cgo), by static programs "
      "or "
      "by those started without LD_PRELOAD, shared memory and mapped files stay local\n",
      use.peak_bytes >> 20, format_size(use.local_bytes), use.far_bytes >> 20);
}

}  // namespace farpage::cli
