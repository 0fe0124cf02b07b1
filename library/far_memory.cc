#include "library/far_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
#include "library/prefault.h"
#include "uffd/own_process.h"

namespace farpage::library {

Result<std::unique_ptr<FarMemory>> FarMemory::create(
    uint64_t pages, const pager::PagerOptions& options, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports, FaultMode mode) {
  const bool in_handler = mode == FaultMode::kInHandler;
  FARPAGE_TRY(space,
              in_handler ? uffd::create_own_sigbus_window(pages) : uffd::create_own_window(pages));
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(space->address_of(PageIndex{0})),
                                   pages << kPageShift);
  pager::PagerOptions complete = options;
  complete.resolve_in_thread = in_handler;
  FARPAGE_TRY(pager,
              pager::Pager::create(complete, std::move(space), client, transports, kNodePatience));
  std::optional<HandledRange> handled;
  if (in_handler) {
    FARPAGE_TRY(added, HandledRange::add(bytes, *pager));
    handled.emplace(std::move(added));
  }
  return std::unique_ptr<FarMemory>(new FarMemory(bytes, std::move(pager), std::move(handled)));
}

Status FarMemory::prefault(uffd::PageRun run, bool writable) const {
  if (!handled_) return library::prefault(bytes_of(run), writable);
  return prefault_here(*pager_, run, writable);
}

void FarMemory::hint_willneed(uffd::PageRun run) const {
  pager_->hint_willneed(run);
  // The pager's own reads of the window fetch no page here; this thread can.
  if (handled_) bring_in_here(*pager_, run);
}

uint64_t FarMemory::present_pages(uffd::PageRun run) const {
  const std::span<std::byte> range = bytes_of(run);
  std::vector<unsigned char> states(run.pages);
  const int result = ::mincore(range.data(), range.size(), states.data());
  FARPAGE_CHECK(result == 0, "mincore of %u pages failed", run.pages);
  return static_cast<uint64_t>(std::count_if(states.begin(), states.end(),
                                             [](unsigned char state) { return (state & 1) != 0; }));
}

Status FarMemory::forget(uffd::PageRun run) const {
  pager_->discard(run);
  return {};
}

RegionStats FarMemory::stats() const {
  const pager::PagerStats pager = pager_->stats();
  RegionStats stats;
  stats.resident_bytes = pager.resident_pages * kPageBytes;
  stats.local_bytes = pager.budget_pages * kPageBytes;
  stats.away_bytes = pager.away_pages * kPageBytes;
  stats.leased_slabs = pager.leased_slabs;
  stats.faults_remote = pager.faults_remote;
  stats.faults_compressed = pager.faults_compressed;
  stats.faults_zero = pager.faults_zero;
  stats.zeros_ahead = pager.zeros_ahead;
  stats.faults_write = pager.faults_write;
  stats.faults_failed = pager.faults_failed;
  stats.prefetched = pager.prefetch_pages;
  stats.evicted_written = pager.evicted_written;
  stats.evicted_clean = pager.evicted_clean;
  stats.evicted_zero = pager.evicted_zero;
  stats.read_bytes = pager.read_bytes;
  stats.written_bytes = pager.write_bytes;
  stats.compressed_stored = pager.compressed_stored;
  stats.compressed_hits = pager.compressed_hits;
  stats.compressed_dropped = pager.compressed_dropped;
  stats.compressed_bytes = pager.compressed_bytes;
  stats.retries = pager.retries;
  stats.replicas_lost = pager.replicas_lost;
  stats.fault_p50_ns = pager.fault_ns.percentile_ns(50);
  stats.fault_p99_ns = pager.fault_ns.percentile_ns(99);
  stats.transports = names_of_transports(pager);
  return stats;
}

}  // namespace farpage::library
