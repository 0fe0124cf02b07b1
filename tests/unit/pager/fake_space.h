// FakeAddressSpace: a window without a kernel. It keeps the rules of userfaultfd that the pager
// relies on (uffd/address_space.h); the test decides when the program touches a page, unmaps it,
// forks or ends, and when it does what drop() has asked for.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/fd.h"
#include "call_log.h"
#include "tests/kernel_rules.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// Rules: those of KernelRules, and
//  1. at a fault a message is queued and the thread sleeps. A wake-up of the page lets it touch
//     again, and withdraws an unread message;
//  2. messages of faults are read before events;
//  3. while an event is unread, calls that change memory return kRetry.
//
// Threads: any. The program has as many threads as the test names; none of them is a real one, but
// for the callers of read() after let_readers_wait().
class FakeAddressSpace final : public RuledSpace {
 public:
  enum class Call : uint8_t {
    kInstall,
    kZero,
    kProtect,
    kUnprotect,
    kRead,
    kDrop,
    kPoison,
    kWake,
    kEventPending,  // has no run
  };
  using Hook = std::function<void(uffd::PageRun)>;

  FakeAddressSpace(uint64_t pages, CallLog& log);

  // ---- the program ----

  // A thread touches a page. True: it goes on. False: it has faulted and sleeps.
  bool touch_read(uint64_t page, uint32_t thread = 1);
  // The write sets word(page), now or after the sleep.
  bool touch_write(uint64_t page, uint64_t value, uint32_t thread = 1);
  bool sleeps(uint32_t thread = 1) const;
  // Its last touch ended in SIGBUS.
  bool has_sigbus(uint32_t thread = 1) const;
  // munmap(2) past the shim: an event is queued.
  void unmap(uffd::PageRun run);
  // madvise(2) past the shim: the pages are absent, and nobody is told.
  void drop_silently(uffd::PageRun run);
  // The event of a fork; `child` has the memory that the test gives it.
  void fork(std::unique_ptr<uffd::AddressSpace> child);
  void end_program();
  // mprotect(2) with PROT_NONE: the pager cannot read the page.
  void close_page(uint64_t page);

  // ---- the test ----

  // The page is here, as after an earlier installation.
  void put(uint64_t page, uint64_t word, uffd::Protection protection);
  bool is_present(uint64_t page) const;
  bool is_protected(uint64_t page) const;
  // Of the page's first bytes. The page is present.
  uint64_t word(uint64_t page) const;
  // A message that a worker reads late: nobody waits for it any more.
  void queue_old_message(const uffd::Fault& fault);
  size_t unread() const;
  // Reads and forgets all messages and events.
  void read_all();
  // From now on drop() does nothing, and do_drop() does what was asked last.
  void drop_later() { drops_later_ = true; }
  void do_drop();
  // Only events tell what the program does: the order for the target, and drops are sections of it.
  EventOrder* let_events_tell() {
    ordered_ = true;
    return &order_;
  }
  // Its agent stands: prepare_drop() fails.
  void let_agent_stand(bool stands) { agent_stands_ = stands; }
  // madvise(2) of a run with this page fails in the program.
  void refuse_drop_of(uint64_t page, int sys_errno);
  // read() of an absent page is a fault of its caller, who sleeps until it is served. Otherwise it
  // fails, as where nobody would serve it.
  void let_readers_wait() { readers_wait_ = true; }
  // Run in each such call, before and after it has had its effect. Set before other threads call.
  void before(Call call, Hook hook) { before_[call] = std::move(hook); }
  void after(Call call, Hook hook) { after_[call] = std::move(hook); }

  size_t read_events(std::span<uffd::Event> out) override;
  int event_descriptor() const override { return events_fd_.get(); }
  uffd::Outcome install(PageIndex first, std::span<const std::byte> bytes,
                        uffd::Protection protection) override;
  uffd::ZeroResult zero(uffd::PageRun run, uffd::ZeroFrames frames) override;
  uffd::Outcome protect(uffd::PageRun run) override;
  uffd::Outcome unprotect(uffd::PageRun run) override;
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override;
  Status drop(std::span<const uffd::PageRun> runs, std::span<uffd::DropResult> results,
              Nanoseconds patience) override;
  Status await_drop(std::span<uffd::DropResult> results, Nanoseconds patience) override;
  Status prepare_drop(Nanoseconds patience) override;
  bool end_drop() override;
  void end_reading() override;
  void free_dropped() override { log_.add("free"); }
  bool can_drop() override { return !agent_stands_; }
  bool cannot_drop_for_long() override { return agent_stands_; }
  Status poison(uffd::PageRun run) override;
  bool event_pending() override;
  bool alive() override;
  void wake(uffd::PageRun run) override;

 private:
  static constexpr uint64_t kBase = uint64_t{1} << 40;

  struct Contents {
    bool closed = false;
    std::vector<std::byte> bytes;  // of a present page
  };
  struct Sleeper {
    uint64_t page = 0;
    bool write = false;
    uint64_t value = 0;
    uint32_t thread = 0;
  };

  // With mutex_ held:
  bool touch(const Sleeper& sleeper);
  bool try_touch(const Sleeper& sleeper);
  void wake_pages(uffd::PageRun run);
  void announce();
  void place(PageIndex page, std::span<const std::byte> bytes, uffd::Protection protection);
  void drop_page(PageIndex page);
  bool is_readable(PageIndex page) const {
    return rules_[page].present && !contents_[page.value].closed;
  }
  uffd::Outcome check_call(uffd::PageRun run) const;  // kDone: the call may go on
  Status read_locked(std::unique_lock<std::mutex>& lock, PageIndex page, std::span<std::byte> out);

  void run_hook(const std::map<Call, Hook>& hooks, Call call, uffd::PageRun run) const;

  CallLog& log_;
  std::map<Call, Hook> before_, after_;
  std::atomic<bool> drops_later_{false};
  std::atomic<bool> agent_stands_{false};
  bool ordered_ = false;
  EventOrder order_;
  std::atomic<bool> readers_wait_{false};
  const Fd events_fd_;  // readable while something is unread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, as rules_ are:
  std::vector<Contents> contents_;
  std::vector<Sleeper> sleepers_;
  std::set<uint32_t> with_sigbus_;
  std::deque<uffd::Fault> faults_;
  std::deque<uffd::Event> events_;
  bool alive_ = true;
  bool announced_ = false;  // events_fd_ is readable
  std::map<uint64_t, int> refused_;
  std::vector<uffd::PageRun> to_drop_;
  std::vector<uffd::DropResult> dropped_;  // of to_drop_, once that was done
};

}  // namespace farpage::pager
