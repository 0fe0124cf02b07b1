// An address space in which a call on one page can be interrupted after the kernel has executed it
// and before the pager knows: the test decides what happens then.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <ostream>
#include <thread>

#include "rig.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: any.
class InterruptedSpace final : public uffd::AddressSpace {
 public:
  enum class Call : uint8_t { kInstall, kZero, kProtect, kUnprotect };

  explicit InterruptedSpace(std::unique_ptr<uffd::AddressSpace> real) : real_(std::move(real)) {}

  // The next such call that covers the page runs `meanwhile` in its caller's thread before it
  // returns.
  void interrupt(Call call, PageIndex page, std::function<void()> meanwhile);
  // The next zero() of several pages places the first half of them, and says kRetry: as when the
  // target forks meanwhile.
  void zero_half_of_next_run() { half_of_next_run_.store(true); }
  // Becomes ready when a thread that has read a write-protected fault of the page reads events
  // again: its first handling of that fault is over.
  std::future<void> next_write_fault_handled(PageIndex page);

  uint64_t pages() const override { return real_->pages(); }
  uint64_t address_of(PageIndex page) const override { return real_->address_of(page); }
  std::vector<uffd::PageRun> runs_in(uint64_t begin, uint64_t end) const override {
    return real_->runs_in(begin, end);
  }
  Status add_extent(uint64_t begin, uint64_t end) override { return real_->add_extent(begin, end); }
  void remove_extent(uint64_t begin, uint64_t end) override { real_->remove_extent(begin, end); }
  size_t read_events(std::span<uffd::Event> out) override;
  int event_descriptor() const override { return real_->event_descriptor(); }
  uffd::Outcome install(PageIndex first, std::span<const std::byte> bytes,
                        uffd::Protection protection) override;
  uffd::ZeroResult zero(uffd::PageRun run, uffd::ZeroFrames frames) override;
  uffd::Outcome protect(uffd::PageRun run) override;
  uffd::Outcome unprotect(uffd::PageRun run) override;
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    return real_->read(present, out);
  }
  Status drop(std::span<const uffd::PageRun> runs, std::span<uffd::DropResult> results,
              Nanoseconds patience) override {
    return real_->drop(runs, results, patience);
  }
  Status await_drop(std::span<uffd::DropResult> results, Nanoseconds patience) override {
    return real_->await_drop(results, patience);
  }
  Status poison(uffd::PageRun run) override { return real_->poison(run); }
  bool event_pending() override { return real_->event_pending(); }
  bool alive() override { return real_->alive(); }
  void wake(uffd::PageRun run) override { real_->wake(run); }

 private:
  void pause_after(Call call, uffd::PageRun run);

  const std::unique_ptr<uffd::AddressSpace> real_;
  std::atomic<bool> half_of_next_run_{false};
  std::mutex mutex_;  // guards all members below
  Call call_ = Call::kInstall;
  PageIndex interrupted_page_{0};
  std::function<void()> meanwhile_;  // empty: no call is interrupted
  PageIndex awaited_page_{0};
  std::promise<void> handled_;
  bool awaited_ = false;
  std::thread::id reader_;  // of the fault that was awaited
};

// For a rig of two workers on an InterruptedSpace; the rig's creation sets `space`.
RigOptions interruptible(InterruptedSpace*& space);

inline void PrintTo(InterruptedSpace::Call call, std::ostream* out) {
  using Call = InterruptedSpace::Call;
  *out << (call == Call::kInstall   ? "Install"
           : call == Call::kZero    ? "Zero"
           : call == Call::kProtect ? "Protect"
                                    : "Unprotect");
}

}  // namespace farpage::pager
