#include "pager/stats.h"

namespace farpage::pager {

void PagerStats::add(const WorkerStats& worker) {
  faults_remote += worker.faults_remote.get();
  faults_zero += worker.faults_zero.get();
  faults_write += worker.faults_write.get();
  faults_coalesced += worker.faults_coalesced.get();
  faults_rescued += worker.faults_rescued.get();
  faults_failed += worker.faults_failed.get();
  faults_waited_room += worker.faults_waited_room.get();
  reads += worker.reads.get();
  read_bytes += worker.read_bytes.get();
  retries += worker.retries.get();
  prefetch_pages += worker.prefetch_pages.get();
  prefetch_failed_pages += worker.prefetch_failed_pages.get();
  zeros_ahead += worker.zeros_ahead.get();
  for (size_t i = 0; i < completions_by_status.size(); ++i)
    completions_by_status[i] += worker.completions_by_status[i].get();
  fault_ns.merge(worker.fault_ns);
  queue_ns.merge(worker.queue_ns);
  wire_ns.merge(worker.wire_ns);
  install_ns.merge(worker.install_ns);
  zero_ns.merge(worker.zero_ns);
}

void PagerStats::add(const EvictorStats& evictor) {
  evicted_written += evictor.pages_written.get();
  evicted_clean += evictor.pages_clean.get();
  evicted_zero += evictor.pages_zero.get();
  evictions_cancelled += evictor.pages_cancelled.get();
  writes += evictor.writes.get();
  write_bytes += evictor.write_bytes.get();
  write_failures += evictor.write_failures.get();
  evict_batch_ns.merge(evictor.batch_ns);
}

void PagerStats::add(const SharedStats& shared) {
  transport_fallbacks += shared.transport_fallbacks.load(std::memory_order_relaxed);
  channels_broken += shared.channels_broken.load(std::memory_order_relaxed);
  replicas_lost += shared.replicas_lost.load(std::memory_order_relaxed);
  for (size_t i = 0; i < connected_by_kind.size(); ++i)
    connected_by_kind[i] += shared.connected_by_kind[i].load(std::memory_order_relaxed);
}

coordinator::Counters PagerStats::counters() const {
  coordinator::Counters result{
      {"farpage_faults_total{kind=\"remote\"}", faults_remote},
      {"farpage_faults_total{kind=\"zero\"}", faults_zero},
      {"farpage_faults_total{kind=\"write\"}", faults_write},
      {"farpage_faults_total{kind=\"coalesced\"}", faults_coalesced},
      {"farpage_faults_total{kind=\"failed\"}", faults_failed},
      {"farpage_rescues_total", faults_rescued},
      {"farpage_reads_total", reads},
      {"farpage_reads_bytes_total", read_bytes},
      {"farpage_writes_total", writes},
      {"farpage_writes_bytes_total", write_bytes},
      {"farpage_evictions_total{kind=\"written\"}", evicted_written},
      {"farpage_evictions_total{kind=\"clean\"}", evicted_clean},
      {"farpage_evictions_total{kind=\"zero\"}", evicted_zero},
      {"farpage_evictions_total{kind=\"cancelled\"}", evictions_cancelled},
      {"farpage_prefetch_total{outcome=\"installed\"}", prefetch_pages},
      {"farpage_prefetch_total{outcome=\"failed\"}", prefetch_failed_pages},
      {"farpage_prefetch_total{outcome=\"zero\"}", zeros_ahead},
      {"farpage_resident_bytes", resident_pages * kPageBytes},
      {"farpage_remote_bytes", away_pages * kPageBytes},
      {"farpage_transport_fallbacks_total", transport_fallbacks},
      {"farpage_replicas_lost_total", replicas_lost},
      {"farpage_fault_seconds_p50_ns", fault_ns.percentile_ns(50)},
      {"farpage_fault_seconds_p99_ns", fault_ns.percentile_ns(99)},
  };
  for (size_t i = 1; i < completions_by_status.size(); ++i) {
    const std::string code(to_string(static_cast<rdma::CompletionStatus>(i)));
    result["farpage_errors_total{code=\"" + code + "\"}"] = completions_by_status[i];
  }
  return result;
}

std::string names_of_transports(const PagerStats& stats) {
  std::string names;
  for (size_t i = 0; i < stats.connected_by_kind.size(); ++i) {
    if (stats.connected_by_kind[i] == 0) continue;
    names += names.empty() ? "" : ",";
    names += rdma::to_string(static_cast<rdma::TransportKind>(i));
  }
  return names;
}

}  // namespace farpage::pager
