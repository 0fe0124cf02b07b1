// RunList: pending hints of the target about runs of pages. It has a fixed size, because the thread
// that executes the hints may be in a signal handler.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: one at a time. Allocates nothing. When the list is full, a further run is dropped: hints
// are not guarantees.
class RunList {
 public:
  static constexpr size_t kMaxRuns = 256;

  bool empty() const { return count_ == 0; }
  // At the end. Behind a run that ends where this one begins, it makes that one longer.
  void push(uffd::PageRun run) {
    if (run.pages == 0) return;
    if (!empty() && end_of(runs_[count_ - 1]) == run.first.value) {
      runs_[count_ - 1].pages += run.pages;
    } else if (count_ < kMaxRuns) {
      runs_[count_++] = run;
    }
  }
  // At most `pages` pages, from the front; nullopt when there are none.
  std::optional<uffd::PageRun> take(uint32_t pages) {
    if (empty()) return std::nullopt;
    uffd::PageRun& front = runs_.front();
    const uffd::PageRun part{front.first, std::min(front.pages, pages)};
    front.first.value += part.pages;
    front.pages -= part.pages;
    if (front.pages == 0) {
      std::ranges::copy(runs().subspan(1), runs_.begin());
      --count_;
    }
    return part;
  }
  // No page of the run is covered any more.
  void forget(uffd::PageRun run) {
    if (empty()) return;
    const RunList before = *this;
    clear();
    for (const uffd::PageRun& old : before.runs()) {
      // All of a run that is not touched is kept by one of the two calls, not by both.
      keep(old.first.value, std::min(end_of(old), run.first.value));
      keep(std::max(old.first.value, end_of(run)), end_of(old));
    }
  }
  bool contains(PageIndex page) const {
    const auto covers = [&](const uffd::PageRun& run) {
      return page.value >= run.first.value && page.value < end_of(run);
    };
    return std::ranges::any_of(runs(), covers);
  }
  // All of them, behind those of `other`.
  void move_to(RunList& other) {
    for (const uffd::PageRun& run : runs()) other.push(run);
    clear();
  }
  void clear() { count_ = 0; }

 private:
  // In the order of push(); a page may be in several.
  std::span<const uffd::PageRun> runs() const { return {runs_.data(), count_}; }
  static uint64_t end_of(const uffd::PageRun& run) { return run.first.value + run.pages; }
  void keep(uint64_t first, uint64_t end) {
    if (first < end) push({PageIndex{first}, static_cast<uint32_t>(end - first)});
  }

  size_t count_ = 0;
  std::array<uffd::PageRun, kMaxRuns> runs_{};
};

}  // namespace farpage::pager
