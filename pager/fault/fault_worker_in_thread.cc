// Faults that the faulting thread resolves itself, by the same code and the same states as the
// fault threads. See "Faults in the thread's own signal handler" in design-notes.
#include <sched.h>

#include "pager/fault/fault_worker.h"

namespace farpage::pager {
namespace {

// Another thread owns the page and will change its state.
bool is_held(PageState state) {
  return state == PageState::kFetching || state == PageState::kUnprotecting ||
         state == PageState::kDropping;
}

}  // namespace

FaultWorker::FaultWorker(EngineCore& engine, Ports ports, Evictor& evictor, uint32_t index)
    : engine_(engine),
      evictor_(&evictor),
      index_(index),
      fetcher_(engine, ports.demand, index),
      prefetcher_(ports.prefetch, index) {}

void FaultWorker::resolve_here(Target& target, const uffd::Fault& fault) {
  const Instant since = SteadyClock::read();
  bool waited = false;
  while (!target.closing.load(std::memory_order_acquire)) {
    const PageState state = target.table.load(fault.page).state();
    if (is_held(state)) {
      // No thread sleeps in the kernel here, so none is woken: this one polls the state, and the
      // instruction is then retried.
      if (state == PageState::kDropping) target.come_forward();
      do {
        ::sched_yield();
      } while (is_held(target.table.load(fault.page).state()));
      break;
    }
    short_of_room_ = nullptr;
    if (handle(target, fault, since)) break;
    if (short_of_room_ == nullptr) continue;  // the page changed meanwhile
    if (!waited) counts_of(target).faults_waited_room.add();
    waited = true;
    target.wait_for_room(kRoomWait, since);
  }
  target.budget.end_claim(since);
  fetcher_.post_queued();
  (void)fetcher_.progress();
  if (lone_count_ > 0) fetch_clusters();
  if (fetcher_.outstanding() > 0) evictor_->help(target);  // while the READ is in flight
  finish_in_flight();
  target.nudge_evictor();
}

void FaultWorker::finish_in_flight() {
  // Prefetches too: after the return no thread would complete them.
  Instant still_since{0};
  while (fetcher_.outstanding() > 0 || prefetcher_.outstanding() > 0) {
    fetcher_.post_queued();
    const bool fetched = fetcher_.progress();
    const bool prefetched = prefetcher_.progress();
    if (fetched || prefetched) {
      still_since = Instant{0};
      continue;
    }
    const Instant now = SteadyClock::read();
    if (still_since.count() == 0) still_since = now;
    ::sched_yield();
    if (now - still_since >= kSpin && prefetcher_.outstanding() == 0) fetcher_.wait_a_little();
  }
}

}  // namespace farpage::pager
