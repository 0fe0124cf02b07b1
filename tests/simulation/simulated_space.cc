#include "simulated_space.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "space_view.h"

namespace farpage::simulation {
namespace {

Mapping pages_of(uint64_t pages) {
  Result<Mapping> memory = Mapping::anonymous(pages * kPageBytes);
  FARPAGE_CHECK(memory.has_value(), "no memory for %llu pages",
                static_cast<unsigned long long>(pages));
  return std::move(*memory);
}

// A stopped or busy target drops its pages this late.
constexpr Nanoseconds kLateDrop = Milliseconds(60);

}  // namespace

SimulatedSpace::SimulatedSpace(Scheduler& scheduler, uint32_t number, uint64_t pages)
    : RuledSpace(0, pages),
      scheduler_(scheduler),
      number_(number),
      memory_(pages_of(pages)),
      events_ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      agent_(scheduler.spawn([this] { run_agent(); }, "agent")) {}

SimulatedSpace::~SimulatedSpace() {
  agent_ends_ = true;
  scheduler_.notify(&drops_);
  scheduler_.join(agent_);
}

// ---- the program ----

Access SimulatedSpace::touch(PageIndex page, bool write) {
  scheduler_.step();
  while (!ended_) {
    const std::optional<uffd::FaultKind> kind = rules_.fault_of(page, write);
    if (!kind && !rules_.is_bus_error(page)) return Access::kDone;
    if (copying_) {
      await_mapping_lock();
      continue;
    }
    if (!kind) return Access::kBusError;
    note(kind == uffd::FaultKind::kWriteProtected ? "faults: protected"
         : write                                  ? "faults: missing, writes"
                                                  : "faults: missing, reads",
         page);
    if (resolve_) {
      resolve_(page, *kind);
      scheduler_.step();
      continue;
    }
    faults_.push_back({page, *kind, static_cast<uint32_t>(scheduler_.self() + 1)});
    update_descriptor();
    (void)scheduler_.wait(&rules_[page], Nanoseconds(-1));
    scheduler_.step();
  }
  return Access::kEnded;
}

Access SimulatedSpace::read_word(PageIndex page, uint32_t word, uint64_t& value) {
  const Access access = touch(page, false);
  if (access == Access::kDone) {
    value = *word_of(page, word);
    note("reads", page, value);
  }
  return access;
}

Access SimulatedSpace::write_word(PageIndex page, uint32_t word, uint64_t value) {
  const Access access = touch(page, true);
  if (access == Access::kDone) {
    *word_of(page, word) = value;
    note("writes", page, value);
  }
  return access;
}

void SimulatedSpace::zap(PageIndex page) {
  scheduler_.step();
  await_mapping_lock();
  note("drops", page);
  rules_.drop(page);
}

void SimulatedSpace::unmap(PageIndex page) {
  scheduler_.step();
  await_mapping_lock();
  ++changing_;
  scheduler_.step();
  note("unmaps", page);
  rules_.unmap(page);
  scheduler_.step();
  tell(std::make_unique<Pending>(Pending{uffd::Unmapped{{{page, 1}}}}));
  --changing_;
}

void SimulatedSpace::fork(uint32_t number, const std::function<void(PageIndex)>& copied,
                          const std::function<void(std::unique_ptr<SimulatedSpace>)>& made) {
  await_mapping_lock();
  scheduler_.note({.what = "forks; the child is space", .space = number_, .value = number});
  auto child = std::make_unique<SimulatedSpace>(scheduler_, number, pages());
  ++changing_;
  copying_ = true;
  for (uint64_t i = 0; i < pages(); ++i) {
    const PageIndex page{i};
    if (rules_[page].present && scheduler_.chance(4)) scheduler_.step();
    child->rules_.inherit(page, rules_);
    if (rules_[page].present) std::ranges::copy(bytes_of(page), child->bytes_of(page).begin());
    copied(page);
  }
  copying_ = false;
  scheduler_.notify(&copying_);
  auto view = std::make_unique<SpaceView>(*child);
  made(std::move(child));
  scheduler_.step();
  tell(std::make_unique<Pending>(Pending{uffd::Forked{std::move(view)}}));
  --changing_;
}

void SimulatedSpace::exit() {
  ended_ = true;
  scheduler_.note({.what = "ends", .space = number_});
  for (uint64_t i = 0; i < pages(); ++i) scheduler_.notify(&rules_[PageIndex{i}]);
  faults_.clear();
  for (Pending* event : std::exchange(events_, {})) {
    event->read = true;
    scheduler_.notify(event);
  }
  update_descriptor();
  scheduler_.notify(&drops_);
  scheduler_.notify(&dropping_);
}

uint64_t SimulatedSpace::present_pages() const {
  uint64_t present = 0;
  for (uint64_t i = 0; i < pages(); ++i) present += rules_[PageIndex{i}].present ? 1 : 0;
  return present;
}

// ---- the kernel ----

void SimulatedSpace::await_mapping_lock() {
  while (copying_) (void)scheduler_.wait(&copying_, Nanoseconds(-1));
}

// The event of a call that changes mappings: the call waits until it has been read.
void SimulatedSpace::tell(std::unique_ptr<Pending> pending) {
  if (ended_) return;
  events_.push_back(pending.get());
  update_descriptor();
  while (!pending->read) (void)scheduler_.wait(pending.get(), Nanoseconds(-1));
  scheduler_.step();
}

void SimulatedSpace::update_descriptor() {
  Descriptors& descriptors = scheduler_.descriptors();
  const bool ready = !faults_.empty() || !events_.empty();
  if (ready == descriptors.is_ready(events_ready_.get())) return;
  if (ready) {
    descriptors.write(events_ready_.get(), 1);
  } else {
    (void)descriptors.read(events_ready_.get());
  }
}

size_t SimulatedSpace::read_events(std::span<uffd::Event> out) {
  scheduler_.step();
  size_t count = 0;
  while (count < out.size() && !faults_.empty()) {
    note("reads the fault", faults_.front().page);
    out[count++] = faults_.front();
    faults_.pop_front();
  }
  while (count < out.size() && !events_.empty()) {
    Pending* const event = events_.front();
    events_.pop_front();
    scheduler_.note({.what = "reads an event", .space = number_});
    if (const auto* forked = std::get_if<uffd::Forked>(&event->event))
      last_child_ = static_cast<SpaceView&>(*forked->child).space().number();
    out[count++] = std::move(event->event);
    event->read = true;
    scheduler_.notify(event);
  }
  update_descriptor();
  return count;
}

void SimulatedSpace::wake_page(PageIndex page) {
  std::erase_if(faults_, [&](const uffd::Fault& fault) { return fault.page == page; });
  update_descriptor();
  scheduler_.notify(&rules_[page]);
}

std::optional<uffd::Outcome> SimulatedSpace::refusal() {
  scheduler_.step();
  await_mapping_lock();
  if (ended_) return uffd::Outcome::kProcessGone;
  if (changing_ > 0) return uffd::Outcome::kRetry;
  return std::nullopt;
}

uffd::Outcome SimulatedSpace::install(PageIndex first, std::span<const std::byte> bytes,
                                      uffd::Protection protection) {
  if (const auto refused = refusal()) return *refused;
  const auto pages = static_cast<uint32_t>(bytes.size() / kPageBytes);
  if (rules_.crosses_mappings({first, pages})) return uffd::Outcome::kUnmapped;
  uffd::Outcome outcome = uffd::Outcome::kDone;
  for (uint32_t i = 0; i < pages; ++i) {
    const PageIndex page{first.value + i};
    // The kernel looks at the mappings again for each page, but not between lock and copy.
    if (i > 0 && scheduler_.chance(4))
      if (const auto refused = refusal()) return *refused;
    if (!rules_[page].mapped) return uffd::Outcome::kUnmapped;
    if (!rules_.is_free(page)) {
      note("finds present", page);
      outcome = uffd::Outcome::kAlreadyPresent;
    } else {
      std::ranges::copy(bytes.subspan(i * kPageBytes, kPageBytes), bytes_of(page).begin());
      rules_.place(page, protection);
      note(rules_[page].is_protected ? "installs protected" : "installs", page, *word_of(page, 0));
    }
    wake_page(page);
  }
  scheduler_.step();
  return outcome;
}

uffd::ZeroResult SimulatedSpace::zero(uffd::PageRun run, uffd::ZeroFrames) {
  if (const auto refused = refusal()) return {0, *refused};
  if (rules_.crosses_mappings(run)) return {0, uffd::Outcome::kUnmapped};
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    if (i > 0 && scheduler_.chance(4))
      if (const auto refused = refusal()) return {i, *refused};
    if (!rules_[page].mapped) return {i, uffd::Outcome::kUnmapped};
    const bool placed = rules_.is_free(page);
    if (placed) {
      std::ranges::fill(bytes_of(page), std::byte{0});
      rules_.place(page, uffd::Protection::kWritable);
    }
    note(placed ? "places zeros" : "finds present", page);
    wake_page(page);
    if (!placed) return {i, uffd::Outcome::kAlreadyPresent};
  }
  scheduler_.step();
  return {run.pages, uffd::Outcome::kDone};
}

uffd::Outcome SimulatedSpace::protect(uffd::PageRun run) {
  if (const auto refused = refusal()) return *refused;
  if (rules_.crosses_mappings(run)) return uffd::Outcome::kUnmapped;
  for (uint32_t i = 0; i < run.pages; ++i) {
    if (scheduler_.chance(16)) scheduler_.step();
    const PageIndex page{run.first.value + i};
    if (rules_.protect(page)) note("protects", page);
  }
  scheduler_.step();
  return uffd::Outcome::kDone;
}

uffd::Outcome SimulatedSpace::unprotect(uffd::PageRun run) {
  if (const auto refused = refusal()) return *refused;
  if (rules_.crosses_mappings(run)) return uffd::Outcome::kUnmapped;
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    note("unprotects", page);
    rules_.unprotect(page);
    wake_page(page);
  }
  scheduler_.step();
  return uffd::Outcome::kDone;
}

Status SimulatedSpace::read(std::span<const PageIndex> present, std::span<std::byte> out) {
  for (size_t i = 0; i < present.size(); ++i) {
    const PageIndex page = present[i];
    // Where threads resolve their own faults, none of the engine's is answered: the kernel returns
    // an error where no page is.
    if (resolve_) scheduler_.step();
    if (!rules_[page].mapped || (resolve_ && (ended_ || !rules_[page].present)))
      return fail(ErrorCode::kUnavailable, "there is no page");
    if (!resolve_ && touch(page, false) != Access::kDone)
      return fail(ErrorCode::kUnavailable, "the page is poisoned, or the process has ended");
    note("copies out", page, *word_of(page, 0));
    std::ranges::copy(bytes_of(page), out.subspan(i * kPageBytes).begin());
  }
  return {};
}

Status SimulatedSpace::drop(std::span<const uffd::PageRun> runs,
                            std::span<uffd::DropResult> results, Nanoseconds patience) {
  scheduler_.step();
  if (ended_) return fail(ErrorCode::kUnavailable, "the target has ended");
  FARPAGE_CHECK(!dropping_, "%zu runs are being dropped", drops_.size());
  drops_.assign(runs.begin(), runs.end());
  dropping_ = true;
  scheduler_.notify(&drops_);
  return await_drop(results, patience);
}

Status SimulatedSpace::await_drop(std::span<uffd::DropResult> results, Nanoseconds patience) {
  const Instant end = scheduler_.now() + patience;
  while (dropping_ && !ended_ && scheduler_.now() < end)
    (void)scheduler_.wait(&dropping_, end - scheduler_.now());
  scheduler_.step();
  if (dropping_ && ended_) return fail(ErrorCode::kUnavailable, "the target has ended");
  if (dropping_) return fail(ErrorCode::kTimedOut, "the target has not dropped its pages");
  std::ranges::fill(results, uffd::DropResult{});
  return {};
}

void SimulatedSpace::run_agent() {
  while (true) {
    while (!dropping_ && !ended_ && !agent_ends_) (void)scheduler_.wait(&drops_, Nanoseconds(-1));
    if (ended_ || agent_ends_) return;
    // A thread of the target: it waits for a CPU, or is stopped.
    if (scheduler_.chance(10)) scheduler_.sleep(scheduler_.choose_time(kLateDrop));
    for (const uffd::PageRun& run : drops_)
      for (uint32_t i = 0; i < run.pages; ++i) zap(PageIndex{run.first.value + i});
    scheduler_.step();
    if (ended_) return;
    dropping_ = false;
    scheduler_.notify(&dropping_);
  }
}

Status SimulatedSpace::poison(uffd::PageRun run) {
  if (const auto refused = refusal(); refused == uffd::Outcome::kRetry)
    return fail(ErrorCode::kUnavailable, "an event is queued");
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    rules_.poison(page);
    note("poisons", page);
    wake_page(page);
  }
  return {};
}

bool SimulatedSpace::event_pending() {
  scheduler_.step();
  return changing_ > 0;
}

void SimulatedSpace::wake(uffd::PageRun run) {
  scheduler_.step();
  for (uint32_t i = 0; i < run.pages; ++i) {
    note("wakes", PageIndex{run.first.value + i});
    wake_page(PageIndex{run.first.value + i});
  }
}

}  // namespace farpage::simulation
