// SimulatedSpace: an address space whose pages, threads and kernel rules are simulated.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "scheduler.h"
#include "tests/kernel_rules.h"
#include "uffd/address_space.h"

namespace farpage::simulation {

inline constexpr uint32_t kWords = 2;  // of a page that a program uses: its first and its last

enum class Access : uint8_t {
  kDone,
  kBusError,
  kEnded,  // the process has ended meanwhile
};

// Threads: fibers of one scheduler.
// Rules: those of KernelRules, and
//  1. A thread that faults leaves an event and waits until the page is woken, then tries again.
//     Waking a page takes its unread events back.
//  2. install, zero and unprotect wake.
//  3. drop() is done by an agent, a thread of the target: page by page, and it may be late.
//  4. fork() copies the present pages with their protection, one after the other, while no fault
//     and no call of the pager changes a mapping; threads write to writable pages meanwhile. From
//     its begin until its event has been read, the calls of the pager are refused (kRetry). The
//     same holds for unmap(). Faults are read before other events.
//  5. After exit() every call of the pager ends with kProcessGone.
class SimulatedSpace final : public RuledSpace {
 public:
  // Called by a thread that faults, instead of an event (PagerOptions::resolve_in_thread).
  using Resolve = std::function<void(PageIndex, uffd::FaultKind)>;

  // `number`: for the trace.
  SimulatedSpace(Scheduler& scheduler, uint32_t number, uint64_t pages);
  // Nothing refers to it any more: ends the agent.
  ~SimulatedSpace() override;
  void set_resolve(Resolve resolve) { resolve_ = std::move(resolve); }

  // -- the program --
  Access read_word(PageIndex page, uint32_t word, uint64_t& value);
  Access write_word(PageIndex page, uint32_t word, uint64_t value);
  // madvise(MADV_DONTNEED).
  void zap(PageIndex page);
  // munmap(2) past the shim: returns when the event has been read. These pages are not used again.
  void unmap(PageIndex page);
  // fork(2): returns in the parent, when the event has been read; then the child runs. `copied` is
  // called when a page is copied, `made` before the event exists: it owns the child's space. The
  // event has a view of it.
  void fork(uint32_t number, const std::function<void(PageIndex)>& copied,
            const std::function<void(std::unique_ptr<SimulatedSpace>)>& made);
  // exit(2) or execve(2).
  void exit();
  bool ended() const { return ended_; }

  uint64_t present_pages() const;
  bool is_present(PageIndex page) const { return rules_[page].present; }
  bool is_protected(PageIndex page) const { return rules_[page].is_protected; }
  bool is_unmapped(PageIndex page) const { return !rules_[page].mapped; }
  uint32_t number() const { return number_; }
  // Of the last child whose event was read.
  uint32_t last_child() const { return last_child_; }
  // Until the agent has executed what a dead pager has asked of it.
  void await_agent() {
    while (dropping_ && !ended_) (void)scheduler_.wait(&dropping_, Milliseconds(1));
  }

  // -- the pager --
  size_t read_events(std::span<uffd::Event> out) override;
  int event_descriptor() const override { return events_ready_.get(); }
  uffd::Outcome install(PageIndex first, std::span<const std::byte> bytes,
                        uffd::Protection protection) override;
  uffd::ZeroResult zero(uffd::PageRun run, uffd::ZeroFrames frames) override;
  uffd::Outcome protect(uffd::PageRun run) override;
  uffd::Outcome unprotect(uffd::PageRun run) override;
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override;
  Status drop(std::span<const uffd::PageRun> runs, std::span<uffd::DropResult> results,
              Nanoseconds patience) override;
  Status await_drop(std::span<uffd::DropResult> results, Nanoseconds patience) override;
  Status poison(uffd::PageRun run) override;
  bool event_pending() override;
  bool alive() override { return !ended_; }
  void wake(uffd::PageRun run) override;

 private:
  struct Pending {  // an event that is no fault
    uffd::Event event;
    bool read = false;
  };
  std::span<std::byte> bytes_of(PageIndex page) {
    return memory_.bytes().subspan(page.value * kPageBytes, kPageBytes);
  }
  uint64_t* word_of(PageIndex page, uint32_t word) {
    auto* const words = reinterpret_cast<uint64_t*>(bytes_of(page).data());
    return words + word * (kPageBytes / sizeof(uint64_t) - 1);
  }
  void note(const char* what, PageIndex page, uint64_t value = 0) {
    scheduler_.note({.what = what, .space = number_, .page = page.value, .value = value});
  }
  // Until the page may be accessed.
  Access touch(PageIndex page, bool write);
  // nullopt: the pager's call may go on.
  std::optional<uffd::Outcome> refusal();
  void await_mapping_lock();
  void tell(std::unique_ptr<Pending> pending);
  void wake_page(PageIndex page);
  void update_descriptor();
  void run_agent();
  Status dropped(std::span<uffd::DropResult> results) const;

  Scheduler& scheduler_;
  const uint32_t number_;
  Mapping memory_;
  Resolve resolve_;
  std::deque<uffd::Fault> faults_;
  std::deque<Pending*> events_;
  Fd events_ready_;        // an eventfd
  uint32_t changing_ = 0;  // calls that wait for the reader of their event
  uint32_t last_child_ = 0;
  bool copying_ = false;  // a fork holds the lock of the mappings
  bool ended_ = false;
  // The agent's work.
  std::vector<uffd::PageRun> drops_;
  bool dropping_ = false;
  bool agent_ends_ = false;
  Scheduler::FiberId agent_ = 0;
};

}  // namespace farpage::simulation
