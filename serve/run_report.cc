#include "serve/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/size.h"

namespace farpage::serve {
namespace {

double microseconds(uint64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

nlohmann::json json_of(const LatencySummary& times) {
  return {{"count", times.count},
          {"mean_us", times.mean_ns / 1000.0},
          {"p50_us", microseconds(times.p50_ns)},
          {"p99_us", microseconds(times.p99_ns)},
          {"p999_us", microseconds(times.p999_ns)},
          {"max_us", microseconds(times.max_ns)}};
}

std::string line_of(const char* name, const LatencySummary& times) {
  if (times.count == 0) return {};
  return fmt::format("  {:<24}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n", name,
                     microseconds(times.p50_ns), microseconds(times.p99_ns),
                     microseconds(times.p999_ns), microseconds(times.max_ns));
}

std::string count_line(const char* name, uint64_t count, const std::string& more = "") {
  return fmt::format("  {:<24}{:>12}{}{}\n", name, count, more.empty() ? "" : "  ", more);
}

std::string transports_of(const pager::PagerCounts& counts) {
  const std::string names = names_of_transports(counts);
  return names.empty() ? "none" : names;
}

std::string format_target(const TargetReport& target) {
  const pager::PagerCounts& counts = target.counts;
  std::string text = fmt::format(
      "farpage: {} (pid {}) over {}, {} local, {} slabs borrowed\n", target.program, target.pid,
      transports_of(counts), format_size(counts.budget_pages * kPageBytes), counts.leased_slabs);
  text += count_line("remote faults", counts.faults_remote,
                     fmt::format("{} read", format_size(counts.read_bytes)));
  if (counts.compressed_stored > 0)
    text += count_line(
        "from compressed copies", counts.compressed_hits,
        fmt::format("{} copies stored, {} dropped; {} in {} now", counts.compressed_stored,
                    counts.compressed_dropped, format_size(counts.compressed_bytes),
                    format_size(counts.compressed_pool_pages * kPageBytes)));
  text += count_line(
      "prefetched pages", counts.prefetch_pages,
      fmt::format("{} of them neighbours, of {} pages", counts.cluster_pages, counts.clusters));
  text += count_line("zero-fill faults", counts.faults_zero,
                     fmt::format("{} pages of zeros placed ahead", counts.zeros_ahead));
  text += count_line("first-write faults", counts.faults_write,
                     fmt::format("{} spurious beside evictions", counts.faults_spurious));
  text +=
      count_line("evictions", counts.evictions(),
                 fmt::format("{} written back, {} unchanged, {} clean, {} all zero; {} sent",
                             counts.evicted_written, counts.evicted_unchanged, counts.evicted_clean,
                             counts.evicted_zero, format_size(counts.write_bytes)));
  if (counts.faults_failed > 0) text += count_line("FAILED FAULTS", counts.faults_failed, "SIGBUS");
  if (counts.wrong_read + counts.wrong_scrubbed > 0)
    text += count_line("wrong pages", counts.wrong_read + counts.wrong_scrubbed,
                       fmt::format("{} by READs, {} by the scrubber; {} written again",
                                   counts.wrong_read, counts.wrong_scrubbed, counts.pages_mended));
  if (counts.retries > 0) text += count_line("retried READs", counts.retries);
  if (counts.replicas_lost > 0) text += count_line("replicas lost", counts.replicas_lost);
  text += fmt::format("  {:<24}{:>12}{:>12}{:>12}{:>12}\n", "microseconds", "p50", "p99", "p99.9",
                      "max");
  text += line_of("remote fault", target.latencies.fault);
  text += line_of("  until posted", target.latencies.queue);
  text += line_of("  on the wire", target.latencies.wire);
  text += line_of("  install and wake", target.latencies.install);
  text += line_of("fault from a copy", target.latencies.compressed);
  text += line_of("zero-fill fault", target.latencies.zero);
  text += line_of("eviction batch", target.latencies.evict_batch);
  return text;
}

}  // namespace

std::string format_report(const std::vector<TargetReport>& targets) {
  if (targets.empty()) return "farpage: no process used far memory (did the program start?)\n";
  std::string text;
  size_t small = 0;
  for (const TargetReport& target : targets) {
    if (target.counts.evictions() == 0 && targets.size() > 1) {
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
    const pager::PagerCounts& counts = target.counts;
    list.push_back({{"program", target.program},
                    {"pid", target.pid},
                    {"transports", transports_of(counts)},
                    {"local_bytes", counts.budget_pages * kPageBytes},
                    {"resident_bytes", counts.resident_pages * kPageBytes},
                    {"remote_bytes", counts.away_pages * kPageBytes},
                    {"leased_slabs", counts.leased_slabs},
                    {"faults",
                     {{"remote", counts.faults_remote},
                      {"compressed", counts.faults_compressed},
                      {"zero", counts.faults_zero},
                      {"write", counts.faults_write},
                      {"spurious", counts.faults_spurious},
                      {"coalesced", counts.faults_coalesced},
                      {"rescued", counts.faults_rescued},
                      {"failed", counts.faults_failed},
                      {"waited_for_room", counts.faults_waited_room}}},
                    {"reads", counts.reads},
                    {"read_bytes", counts.read_bytes},
                    {"retries", counts.retries},
                    {"wrong_read", counts.wrong_read},
                    {"wrong_scrubbed", counts.wrong_scrubbed},
                    {"pages_scrubbed", counts.pages_scrubbed},
                    {"pages_mended", counts.pages_mended},
                    {"prefetched_pages", counts.prefetch_pages},
                    {"prefetch_failed_pages", counts.prefetch_failed_pages},
                    {"clusters",
                     {{"fetched", counts.clusters},
                      {"pages", counts.cluster_pages},
                      {"watched", counts.cluster_watched},
                      {"watched_used", counts.cluster_watched_used}}},
                    {"zero_pages_ahead", counts.zeros_ahead},
                    {"evictions",
                     {{"written", counts.evicted_written},
                      {"unchanged", counts.evicted_unchanged},
                      {"clean", counts.evicted_clean},
                      {"zero", counts.evicted_zero},
                      {"cancelled", counts.evictions_cancelled}}},
                    {"writes", counts.writes},
                    {"write_bytes", counts.write_bytes},
                    {"write_failures", counts.write_failures},
                    {"compressed_stored", counts.compressed_stored},
                    {"compressed_hits", counts.compressed_hits},
                    {"compressed_early", counts.compressed_early},
                    {"compressed_dropped", counts.compressed_dropped},
                    {"compressed_bytes", counts.compressed_bytes},
                    {"compressed_pool_bytes", counts.compressed_pool_pages * kPageBytes},
                    {"replicas_lost", counts.replicas_lost},
                    {"transport_fallbacks", counts.transport_fallbacks},
                    {"latency",
                     {{"remote_fault", json_of(target.latencies.fault)},
                      {"until_posted", json_of(target.latencies.queue)},
                      {"wire", json_of(target.latencies.wire)},
                      {"install", json_of(target.latencies.install)},
                      {"compressed_fault", json_of(target.latencies.compressed)},
                      {"zero_fault", json_of(target.latencies.zero)},
                      {"evict_batch", json_of(target.latencies.evict_batch)}}}});
  }
  return nlohmann::json{{"exit_status", exit_status}, {"targets", list}}.dump(2) + "\n";
}

MemoryUse memory_use(const std::vector<TargetReport>& targets, uint64_t local_bytes,
                     uint64_t peak_bytes) {
  MemoryUse use{.local_bytes = local_bytes, .peak_bytes = peak_bytes};
  for (const TargetReport& target : targets) {
    const pager::PagerCounts& counts = target.counts;
    // A page first becomes far memory by one of these.
    use.far_bytes += (counts.faults_zero + counts.zeros_ahead) * kPageBytes;
    // `farpage resize` may have changed it.
    use.local_bytes = std::max(use.local_bytes, counts.budget_pages * kPageBytes);
  }
  return use;
}

std::string local_memory_warning(const MemoryUse& use) {
  constexpr uint64_t kNextToNothing = 16;  // less than 1/16 of the peak
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

}  // namespace farpage::serve
