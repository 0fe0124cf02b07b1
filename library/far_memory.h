// FarMemory: a window of this process and the pager that serves it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

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

// Threads: create(), moving and destruction one; the rest any.
class FarMemory {
 public:
  // The client and the transports outlive it.
  static Result<FarMemory> create(uint64_t pages, const pager::PagerOptions& options,
                                  coordinator::Client& client,
                                  std::vector<std::unique_ptr<rdma::Transport>>& transports,
                                  FaultMode mode = FaultMode::kInWorker);

  // An access to it may fault.
  std::span<std::byte> bytes() const { return bytes_; }
  FaultMode fault_mode() const { return handled_ ? FaultMode::kInHandler : FaultMode::kInWorker; }
  pager::Pager& pager() const { return *pager_; }

  // Fetches every page and waits for it; `writable`: the first write does not fault either. The
  // pages may be evicted again at any time. kUnavailable: a page is lost.
  Status prefault(uffd::PageRun run, bool writable) const;
  // Fetches pages soon, while there is room; with kInHandler, before this returns.
  void hint_willneed(uffd::PageRun run) const;
  // Keeps the pages resident and writable until pager().unpin(). kExhausted: the limit for pins.
  // kUnavailable: a page is lost. After a failure, no page of the run is pinned.
  Status pin(uffd::PageRun run) const;
  // The number of pages of the run that are resident, according to the kernel.
  uint64_t present_pages(uffd::PageRun run) const;
  // The pages read as zeros from now on, and are not resident.
  Status discard(uffd::PageRun run) const;

 private:
  FarMemory(std::span<std::byte> bytes, std::unique_ptr<pager::Pager> pager,
            std::optional<HandledRange> handled)
      : bytes_(bytes), pager_(std::move(pager)), handled_(std::move(handled)) {}
  std::span<std::byte> bytes_of(uffd::PageRun run) const {
    return bytes_.subspan(run.first.value << kPageShift, size_t{run.pages} << kPageShift);
  }

  std::span<std::byte> bytes_;
  std::unique_ptr<pager::Pager> pager_;
  std::optional<HandledRange> handled_;  // with kInHandler
};

}  // namespace farpage::library
