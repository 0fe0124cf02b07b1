#include "pager/stats.h"

#include <algorithm>

namespace farpage::pager {

namespace {

// Upper edges of the exported buckets, in nanoseconds, and as the label `le`, in seconds.
constexpr std::array<uint64_t, 16> kEdgesNs{2'500,      5'000,       10'000,      25'000,
                                            50'000,     100'000,     250'000,     500'000,
                                            1'000'000,  2'500'000,   5'000'000,   10'000'000,
                                            50'000'000, 100'000'000, 500'000'000, 1'000'000'000};
constexpr std::array<const char*, kEdgesNs.size()> kEdgesSeconds{
    "0.0000025", "0.000005", "0.00001", "0.000025", "0.00005", "0.0001", "0.00025", "0.0005",
    "0.001",     "0.0025",   "0.005",   "0.01",     "0.05",    "0.1",    "0.5",     "1"};

// As a Prometheus histogram; its sum travels in nanoseconds, because counters are integers.
void add_histogram(coordinator::Counters& counters, const std::string& name,
                   const Histogram& histogram) {
  std::array<uint64_t, kEdgesNs.size()> counts{};
  histogram.cumulate(kEdgesNs, counts);
  for (size_t i = 0; i < counts.size(); ++i)
    counters[name + "_bucket{le=\"" + kEdgesSeconds[i] + "\"}"] = counts[i];
  counters[name + "_count"] = std::max(histogram.count(), counts.back());
  counters[name + "_sum_ns"] = histogram.sum_ns();
}

}  // namespace

void PagerStats::add(const WorkerCounts& worker) {
  faults_remote += worker.faults_remote.get();
  faults_compressed += worker.faults_compressed.get();
  compressed_hits += worker.faults_compressed.get() + worker.prefetch_compressed_pages.get();
  faults_zero += worker.faults_zero.get();
  faults_write += worker.faults_write.get();
  faults_spurious += worker.faults_spurious.get();
  faults_coalesced += worker.faults_coalesced.get();
  faults_rescued += worker.faults_rescued.get();
  faults_failed += worker.faults_failed.get();
  faults_waited_room += worker.faults_waited_room.get();
  compressed_early += worker.early_copies.get();
  reads += worker.reads.get();
  read_bytes += worker.read_bytes.get();
  retries += worker.retries.get();
  wrong_read += worker.pages_wrong.get();
  prefetch_pages += worker.prefetch_pages.get();
  prefetch_failed_pages += worker.prefetch_failed_pages.get();
  clusters += worker.clusters.get();
  cluster_pages += worker.cluster_pages.get();
  zeros_ahead += worker.zeros_ahead.get();
  for (size_t i = 0; i < completions_by_status.size(); ++i)
    completions_by_status[i] += worker.completions_by_status[i].get();
}

void PagerStats::add(const TargetTimes& times) {
  fault_ns.merge(times.fault_ns);
  queue_ns.merge(times.queue_ns);
  wire_ns.merge(times.wire_ns);
  install_ns.merge(times.install_ns);
  compressed_ns.merge(times.compressed_ns);
  zero_ns.merge(times.zero_ns);
  evict_batch_ns.merge(times.evict_batch_ns);
}

void PagerStats::add(const EvictorCounts& evictor) {
  evicted_written += evictor.pages_written.get();
  evicted_unchanged += evictor.pages_unchanged.get();
  evicted_clean += evictor.pages_clean.get();
  evicted_zero += evictor.pages_zero.get();
  evictions_cancelled += evictor.pages_cancelled.get();
  compressed_stored += evictor.copies_stored.get();
  writes += evictor.writes.get();
  write_bytes += evictor.write_bytes.get();
  write_failures += evictor.write_failures.get();
}

void PagerStats::add(const LinkCounts& links) {
  transport_fallbacks += links.transport_fallbacks.load(std::memory_order_relaxed);
  channels_broken += links.channels_broken.load(std::memory_order_relaxed);
  for (size_t i = 0; i < connected_by_kind.size(); ++i)
    connected_by_kind[i] += links.connected_by_kind[i].load(std::memory_order_relaxed);
}

PagerLatencies PagerStats::latencies() const {
  return {fault_ns.summary(),      queue_ns.summary(),      wire_ns.summary(),
          install_ns.summary(),    compressed_ns.summary(), zero_ns.summary(),
          evict_batch_ns.summary()};
}

coordinator::Counters PagerStats::counters() const {
  coordinator::Counters result{
      {"farpage_faults_total{kind=\"remote\"}", faults_remote},
      {"farpage_faults_total{kind=\"compressed\"}", faults_compressed},
      {"farpage_faults_total{kind=\"zero\"}", faults_zero},
      {"farpage_faults_total{kind=\"write\"}", faults_write},
      {"farpage_faults_total{kind=\"spurious\"}", faults_spurious},
      {"farpage_faults_total{kind=\"coalesced\"}", faults_coalesced},
      {"farpage_faults_total{kind=\"failed\"}", faults_failed},
      {"farpage_rescues_total", faults_rescued},
      {"farpage_reads_total", reads},
      {"farpage_reads_bytes_total", read_bytes},
      {"farpage_wrong_pages_total{found=\"read\"}", wrong_read},
      {"farpage_wrong_pages_total{found=\"scrub\"}", wrong_scrubbed},
      {"farpage_scrubbed_pages_total", pages_scrubbed},
      {"farpage_mended_pages_total", pages_mended},
      {"farpage_writes_total", writes},
      {"farpage_writes_bytes_total", write_bytes},
      {"farpage_evictions_total{kind=\"written\"}", evicted_written},
      {"farpage_evictions_total{kind=\"unchanged\"}", evicted_unchanged},
      {"farpage_evictions_total{kind=\"clean\"}", evicted_clean},
      {"farpage_evictions_total{kind=\"zero\"}", evicted_zero},
      {"farpage_evictions_total{kind=\"cancelled\"}", evictions_cancelled},
      {"farpage_prefetch_total{outcome=\"installed\"}", prefetch_pages},
      {"farpage_prefetch_total{outcome=\"failed\"}", prefetch_failed_pages},
      {"farpage_prefetch_total{outcome=\"zero\"}", zeros_ahead},
      {"farpage_clusters_total", clusters},
      {"farpage_cluster_pages_total{event=\"installed\"}", cluster_pages},
      {"farpage_cluster_pages_total{event=\"watched\"}", cluster_watched},
      {"farpage_cluster_pages_total{event=\"watched_used\"}", cluster_watched_used},
      {"farpage_compressed_total{event=\"stored\"}", compressed_stored},
      {"farpage_compressed_total{event=\"hit\"}", compressed_hits},
      {"farpage_compressed_total{event=\"dropped\"}", compressed_dropped},
      {"farpage_compressed_bytes", compressed_bytes},
      {"farpage_compressed_pool_bytes", compressed_pool_pages * kPageBytes},
      {"farpage_resident_bytes", resident_pages * kPageBytes},
      {"farpage_remote_bytes", away_pages * kPageBytes},
      {"farpage_transport_fallbacks_total", transport_fallbacks},
      {"farpage_replicas_lost_total", replicas_lost},
  };
  add_histogram(result, "farpage_fault_seconds", fault_ns);
  for (size_t i = 1; i < completions_by_status.size(); ++i) {
    const std::string code(to_string(static_cast<rdma::CompletionStatus>(i)));
    result["farpage_errors_total{code=\"" + code + "\"}"] = completions_by_status[i];
  }
  return result;
}

std::string names_of_transports(const PagerCounts& counts) {
  std::vector<rdma::TransportKind> kinds;
  for (size_t i = 0; i < counts.connected_by_kind.size(); ++i)
    if (counts.connected_by_kind[i] != 0) kinds.push_back(static_cast<rdma::TransportKind>(i));
  return names_of(kinds);
}

}  // namespace farpage::pager
