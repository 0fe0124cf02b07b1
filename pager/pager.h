// Pager: gives one address space more memory than its budget, and keeps the rest on memory nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/client.h"
#include "pager/options.h"
#include "pager/pages/access_map.h"
#include "pager/stats.h"
#include "pager/touch_recorder.h"
#include "rdma/transport.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// What divides memory among pagers needs to know of one, without the cost of its statistics.
struct BudgetUse {
  uint64_t limit_pages = 0;  // without `shared_pages` of set_limit()
  uint64_t used_pages = 0;
  uint64_t least_pages = 0;  // the smallest limit that set_limit() accepts: what is pinned needs it
  uint64_t faults = 0;       // that needed a page of room, since the start
  uint64_t shared_pages = 0;  // of the used ones: frames that are relatives' too (guard_shared())
  uint64_t family = 0;        // the same for processes related by fork
};

// One target of an engine (engine.h). Every method may be called from any thread but the engine's.
class Pager {
 public:
  // A target with an engine of its own: Engine::create() and Engine::add().
  static Result<std::unique_ptr<Pager>> create(
      const PagerOptions& options, std::unique_ptr<uffd::AddressSpace> space,
      coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
      Milliseconds patience);
  virtual ~Pager() = default;

  // The target discards these pages: they read as zeros from now on. Returns when no worker owns
  // one of them.
  virtual void discard(uffd::PageRun run) = 0;
  // The same without waiting. False: a worker owns a page of it, or a fork is under way: discard()
  // does the rest.
  virtual bool try_discard(uffd::PageRun run) = 0;
  // [begin, end), page-aligned and empty, is far memory outside of the window from now on, as soon
  // as it is registered; what was there before has been given up. kExhausted: too much. kConflict:
  // a fork is under way.
  virtual Status add_extent(uint64_t begin, uint64_t end) = 0;
  // The same for memory that the program goes on using, where events tell what it does to its
  // mappings (AddressSpace::event_order()): it is registered, as far as that can be, and what is an
  // extent there stays as it is. Afterwards adopt_present() makes what is there resident: it is
  // evicted until the budget is kept.
  virtual Status cover(uint64_t begin, uint64_t end) = 0;
  virtual Status adopt_present(uint64_t begin, uint64_t end) = 0;
  // Every page is in the target's memory when this returns, and stays there; the budget is no limit
  // any more. kUnavailable: some are not; the log has the reason.
  virtual Status bring_back() = 0;
  // Discards its pages, as discard(); then it is no far memory any more, unless it is in the
  // window.
  virtual void remove_extent(uint64_t begin, uint64_t end) = 0;
  // mlock(2): from the return of pin() on these pages are not evicted, once they are here; false:
  // the pins would take more of the budget than kPinPercent, and nothing was pinned.
  virtual bool pin(uffd::PageRun run) = 0;
  virtual void unpin(uffd::PageRun run) = 0;
  // madvise(2). Hints: executed soon, as far as there is room, and dropped when there are too many.
  virtual void hint_cold(uffd::PageRun run) = 0;
  // With resolve_in_thread only the caller can fetch pages: then this only cancels hint_cold().
  virtual void hint_willneed(uffd::PageRun run) = 0;
  virtual void advise(uffd::PageRun run, AccessPattern pattern) = 0;
  // Sets a new PagerOptions::local_bytes; the limit for pins changes with it. Returns at once:
  // excess pages are evicted without a fault, and meanwhile faults get half of the freed room.
  // kInvalid: less than kMinLocalBytes. kConflict: more is pinned than the new limit; the text
  // names the smallest possible size. After a failure nothing has changed.
  virtual Status set_local(uint64_t local_bytes) = 0;
  // The same in pages, also below kMinLocalBytes: for the share of a budget that pagers have in
  // common. `shared_pages` more may be resident, but no more than `pages` with a frame of their own
  // (guard_shared()). kConflict: less than BudgetUse::least_pages.
  virtual Status set_limit(uint64_t pages, uint64_t shared_pages) = 0;
  // The smallest limit with which pin(run) succeeds.
  virtual uint64_t limit_to_pin(uffd::PageRun run) const = 0;
  // Of a target of Engine::restore(): what the leases of its stored pages are now, when replicas
  // were made elsewhere. Fails as refresh_leases() does; what was there can still be used.
  virtual Status refresh_stored(const std::vector<coordinator::Lease>& leases) = 0;
  // Pauses eviction until end_fork(); meanwhile no fault waits for room. True: the target may
  // fork. With ForkMode::kShare on_child gets its child; otherwise every page is present
  // (fetched if the options say so) or was never written, and the kernel's copy is complete.
  // False: it may not fork, and eviction continues.
  virtual bool begin_fork() = 0;
  // `forked`: there is a child. Returns after on_child has had it.
  virtual void end_fork(bool forked) = 0;
  // Between begin_fork() and end_fork().
  virtual bool is_forking() = 0;
  // The child of a fork under way, whose event a dead pager has read.
  virtual void child_found(std::unique_ptr<uffd::AddressSpace> child) = 0;
  // Readable when children have arrived, or wants_budget() has become true: call adopt_children()
  // then. A child of a fork that the pager was told of arrives no later than end_fork(); one that
  // was not announced at any time.
  virtual int attention_descriptor() const = 0;
  virtual void adopt_children() = 0;
  // Children whose events were read before this call have arrived, and on_child has not had them.
  virtual bool has_arrivals() const = 0;
  // After Engine::adopt(), in this order. The target's agent can drop pages from now on. The child
  // has what it had at the fork and `free_pages` more; `name`: TargetOptions::name, which now can
  // tell the process.
  virtual void agent_ready(std::string name, uint64_t free_pages) = 0;
  // It needs more than that: its faults wait for begin_eviction().
  virtual bool wants_budget() const = 0;
  // From now on it has a budget like any other, set before.
  virtual void begin_eviction() = 0;
  // Of a parent and of its new child: protects what is present, and so shared. From now on a write
  // that copies such a page is seen, and waits while the target has as many frames of its own as
  // its limit. Returns how many were not shared before.
  virtual uint64_t guard_shared() = 0;

  // With PagerOptions::resolve_in_thread: when it returns, the page is present or poisoned, or the
  // next fault on it will decide. Called from signal handlers: it takes no lock that code which
  // touches far memory could hold, and errno may change.
  virtual void resolve(PageIndex page, uffd::FaultKind kind) = 0;
  // Which fault a touch of the page would be now; nullopt: none.
  virtual std::optional<uffd::FaultKind> next_fault(PageIndex page, bool write) const = 0;
  // Only memory nodes have it.
  virtual bool is_away(PageIndex page) const = 0;
  // Pages that no thread waits for may still be fetched.
  virtual bool has_spare_room() const = 0;
  // No replica can deliver the page any more: a touch is SIGBUS.
  virtual bool is_lost(PageIndex page) const = 0;

  virtual uffd::AddressSpace& space() = 0;
  virtual PagerStats stats() const = 0;
  // Null without PagerOptions::record_touches.
  virtual std::shared_ptr<const TouchRecorder> recorder() const = 0;
  virtual BudgetUse budget_use() const = 0;
  // Exited, or called exec.
  virtual bool target_gone() const = 0;
  // For tests, when no fault and no eviction is under way: the page table and the budget agree.
  virtual Status check_invariants() const = 0;
};

}  // namespace farpage::pager
