// FarMemory: a window of this process and the pager that serves it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "library/memory.h"
#include "library/signal_handler.h"
#include "pager/pager.h"

namespace farpage::library {

// Who resolves a fault.
enum class FaultMode : uint8_t {
  kInWorker,   // a thread of the pager
  kInHandler,  // the faulting thread, in its SIGBUS handler (signal_handler.h)
};

// How long the first slab waits for memory nodes.
inline constexpr Milliseconds kNodePatience{5000};

// Threads: create() and destruction one; the rest any.
class FarMemory final : public Memory {
 public:
  // The client and the transports outlive it.
  static Result<std::unique_ptr<FarMemory>> create(
      uint64_t pages, const pager::PagerOptions& options, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports,
      FaultMode mode = FaultMode::kInWorker);

  FaultMode fault_mode() const { return handled_ ? FaultMode::kInHandler : FaultMode::kInWorker; }
  pager::Pager& pager() const { return *pager_; }
  // The number of pages of the run that are resident, according to the kernel.
  uint64_t present_pages(uffd::PageRun run) const;

  std::span<std::byte> bytes() const override { return bytes_; }
  uint64_t local_pages() const override { return pager_->budget_use().limit_pages; }
  Status prefault(uffd::PageRun run, bool writable) const override;
  void hint_willneed(uffd::PageRun run) const override;
  void hint_cold(uffd::PageRun run) const override { pager_->hint_cold(run); }
  void advise(uffd::PageRun run, pager::AccessPattern pattern) const override {
    pager_->advise(run, pattern);
  }
  void unpin(uffd::PageRun run) const override { pager_->unpin(run); }
  Status set_local(uint64_t local_bytes) const override { return pager_->set_local(local_bytes); }
  RegionStats stats() const override;

 private:
  FarMemory(std::span<std::byte> bytes, std::unique_ptr<pager::Pager> pager,
            std::optional<HandledRange> handled)
      : bytes_(bytes), pager_(std::move(pager)), handled_(std::move(handled)) {}
  Result<bool> try_pin(uffd::PageRun run) const override { return pager_->pin(run); }
  Status forget(uffd::PageRun run) const override;

  std::span<std::byte> bytes_;
  std::unique_ptr<pager::Pager> pager_;
  std::optional<HandledRange> handled_;  // with kInHandler
};

}  // namespace farpage::library
