// FarWindow: far memory of this process for benchmarks: a window and its pager.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bench/content.h"
#include "library/far_memory.h"

namespace farpage::bench {

inline constexpr Nanoseconds kPushPatience = Seconds(10);

// Whole pages only.
constexpr uint64_t pages_of(uint64_t bytes) {
  return bytes >> kPageShift;
}

using library::FaultMode;
// "worker" and "handler", as on command lines.
std::string_view to_string(FaultMode mode);
std::optional<FaultMode> fault_mode_from(std::string_view name);

// Threads: create() and destruction one; words() any.
class FarWindow {
 public:
  // The client and the transports outlive the window.
  static Result<FarWindow> create(uint64_t pages, const pager::PagerOptions& options,
                                  coordinator::Client& client,
                                  std::vector<std::unique_ptr<rdma::Transport>>& transports,
                                  FaultMode mode = FaultMode::kInWorker);

  // The words of the page itself: an access may fault.
  std::span<uint64_t, Content::kWords> words(uint64_t page) const {
    return std::span<uint64_t, Content::kWords>(
        reinterpret_cast<uint64_t*>(memory_->bytes().data() + (page << kPageShift)),
        Content::kWords);
  }
  FaultMode fault_mode() const { return memory_->fault_mode(); }
  pager::PagerStats stats() const { return memory_->pager().stats(); }

  // Whether the page is remote: a touch of it now would wait for a READ.
  bool is_away(uint64_t page) const { return memory_->pager().is_away(PageIndex{page}); }

  // Writes content of version 0 to `pages` pages from `first` on.
  void fill(const Content& content, uint64_t first, uint64_t pages) const;
  uint64_t present_pages(uint64_t first, uint64_t pages) const;
  // Evicts these pages by hint, as Region::evict() does, and returns when all of them are remote.
  // None of them may be all zeros, or be touched meanwhile. kConflict: no page was evicted for
  // kPushPatience.
  Status push_out(uint64_t first, uint64_t pages) const;
  // The pages read as zeros from now on, and are not resident.
  void discard(uint64_t first, uint64_t pages) const;

 private:
  explicit FarWindow(std::unique_ptr<library::FarMemory> memory) : memory_(std::move(memory)) {}

  std::unique_ptr<library::FarMemory> memory_;
};

}  // namespace farpage::bench
