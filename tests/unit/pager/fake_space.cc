#include "fake_space.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace farpage::pager {
namespace {

bool is_in(uffd::PageRun run, uint64_t page) {
  return page >= run.first.value && page - run.first.value < run.pages;
}

}  // namespace

FakeAddressSpace::FakeAddressSpace(uint64_t pages, CallLog& log)
    : RuledSpace(kBase, pages),
      log_(log),
      events_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      contents_(pages) {}

void FakeAddressSpace::run_hook(const std::map<Call, Hook>& hooks, Call call,
                                uffd::PageRun run) const {
  if (const auto hook = hooks.find(call); hook != hooks.end() && hook->second) hook->second(run);
}

// ---- the program ----

bool FakeAddressSpace::touch_read(uint64_t page, uint32_t thread) {
  const std::lock_guard lock(mutex_);
  return touch({.page = page, .thread = thread});
}

bool FakeAddressSpace::touch_write(uint64_t page, uint64_t value, uint32_t thread) {
  const std::lock_guard lock(mutex_);
  return touch({.page = page, .write = true, .value = value, .thread = thread});
}

bool FakeAddressSpace::touch(const Sleeper& sleeper) {
  with_sigbus_.erase(sleeper.thread);
  return try_touch(sleeper);
}

// False: the thread has faulted.
bool FakeAddressSpace::try_touch(const Sleeper& sleeper) {
  const PageIndex page{sleeper.page};
  FARPAGE_CHECK(rules_[page].mapped, "a touch of page %llu, which is unmapped",
                static_cast<unsigned long long>(sleeper.page));
  if (rules_.is_bus_error(page)) {
    with_sigbus_.insert(sleeper.thread);
    return true;
  }
  const std::optional<uffd::FaultKind> kind = rules_.fault_of(page, sleeper.write);
  if (!kind) {
    if (sleeper.write)
      std::memcpy(contents_[page.value].bytes.data(), &sleeper.value, sizeof sleeper.value);
    return true;
  }
  sleepers_.push_back(sleeper);
  faults_.push_back({page, *kind, sleeper.thread});
  announce();
  return false;
}

bool FakeAddressSpace::sleeps(uint32_t thread) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(sleepers_, [&](const Sleeper& s) { return s.thread == thread; });
}

bool FakeAddressSpace::has_sigbus(uint32_t thread) const {
  const std::lock_guard lock(mutex_);
  return with_sigbus_.contains(thread);
}

void FakeAddressSpace::unmap(uffd::PageRun run) {
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < run.pages; ++i) {
    drop_page(PageIndex{run.first.value + i});
    rules_.unmap(PageIndex{run.first.value + i});
  }
  events_.emplace_back(uffd::Unmapped{{run}});
  announce();
}

void FakeAddressSpace::drop_silently(uffd::PageRun run) {
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < run.pages; ++i) drop_page(PageIndex{run.first.value + i});
}

void FakeAddressSpace::fork(std::unique_ptr<uffd::AddressSpace> child) {
  const std::lock_guard lock(mutex_);
  events_.emplace_back(uffd::Forked{std::move(child)});
  announce();
}

void FakeAddressSpace::end_program() {
  const std::lock_guard lock(mutex_);
  alive_ = false;
  sleepers_.clear();
  changed_.notify_all();
}

void FakeAddressSpace::close_page(uint64_t page) {
  const std::lock_guard lock(mutex_);
  contents_.at(page).closed = true;
}

// ---- the test ----

void FakeAddressSpace::put(uint64_t page, uint64_t word, uffd::Protection protection) {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte> bytes(kPageBytes);
  std::memcpy(bytes.data(), &word, sizeof word);
  place(PageIndex{page}, bytes, protection);
}

bool FakeAddressSpace::is_present(uint64_t page) const {
  const std::lock_guard lock(mutex_);
  return rules_[PageIndex{page}].present;
}

bool FakeAddressSpace::is_protected(uint64_t page) const {
  const std::lock_guard lock(mutex_);
  return rules_[PageIndex{page}].is_protected;
}

uint64_t FakeAddressSpace::word(uint64_t page) const {
  const std::lock_guard lock(mutex_);
  FARPAGE_CHECK(rules_[PageIndex{page}].present, "page %llu is absent",
                static_cast<unsigned long long>(page));
  uint64_t word = 0;
  std::memcpy(&word, contents_[page].bytes.data(), sizeof word);
  return word;
}

void FakeAddressSpace::queue_old_message(const uffd::Fault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
  announce();
}

size_t FakeAddressSpace::unread() const {
  const std::lock_guard lock(mutex_);
  return faults_.size() + events_.size();
}

void FakeAddressSpace::read_all() {
  std::array<uffd::Event, 16> events;
  while (read_events(events) > 0) {
  }
}

void FakeAddressSpace::refuse_drop_of(uint64_t page, int sys_errno) {
  const std::lock_guard lock(mutex_);
  refused_[page] = sys_errno;
}

void FakeAddressSpace::do_drop() {
  const std::lock_guard lock(mutex_);
  if (!dropped_.empty()) return;  // done already
  for (const uffd::PageRun run : to_drop_) {
    int sys_errno = 0;
    for (const auto& [page, refusal] : refused_)
      if (is_in(run, page)) sys_errno = refusal;
    dropped_.push_back({sys_errno});
    if (sys_errno != 0) continue;
    for (uint32_t i = 0; i < run.pages; ++i) drop_page(PageIndex{run.first.value + i});
  }
}

// ---- the kernel ----

// Sets the descriptor to what the queues say.
void FakeAddressSpace::announce() {
  const bool any = !faults_.empty() || !events_.empty();
  if (any == announced_) return;
  announced_ = any;
  uint64_t count = 1;
  if (any) {
    FARPAGE_CHECK(::write(events_fd_.get(), &count, sizeof count) == sizeof count, "errno %d",
                  errno);
  } else {
    FARPAGE_CHECK(::read(events_fd_.get(), &count, sizeof count) == sizeof count, "errno %d",
                  errno);
  }
}

size_t FakeAddressSpace::read_events(std::span<uffd::Event> out) {
  const std::lock_guard lock(mutex_);
  size_t stored = 0;
  while (stored < out.size() && !faults_.empty()) {
    out[stored++] = faults_.front();
    faults_.pop_front();
  }
  while (stored < out.size() && !events_.empty()) {
    out[stored++] = std::move(events_.front());
    events_.pop_front();
  }
  announce();
  return stored;
}

void FakeAddressSpace::wake_pages(uffd::PageRun run) {
  std::vector<Sleeper> woken;
  std::erase_if(sleepers_, [&](const Sleeper& sleeper) {
    if (!is_in(run, sleeper.page)) return false;
    woken.push_back(sleeper);
    return true;
  });
  for (const Sleeper& sleeper : woken)
    std::erase_if(faults_, [&](const uffd::Fault& fault) {
      return fault.thread == sleeper.thread && fault.page.value == sleeper.page;
    });
  for (const Sleeper& sleeper : woken)
    if (rules_[PageIndex{sleeper.page}].mapped) (void)try_touch(sleeper);
  announce();
  changed_.notify_all();
}

void FakeAddressSpace::place(PageIndex page, std::span<const std::byte> bytes,
                             uffd::Protection protection) {
  rules_.place(page, protection);
  contents_[page.value].bytes.assign(bytes.begin(), bytes.end());
}

void FakeAddressSpace::drop_page(PageIndex page) {
  rules_.drop(page);
  contents_[page.value] = {};
}

uffd::Outcome FakeAddressSpace::check_call(uffd::PageRun run) const {
  if (!alive_) return uffd::Outcome::kProcessGone;
  if (!events_.empty()) return uffd::Outcome::kRetry;
  return rules_.crosses_mappings(run) ? uffd::Outcome::kUnmapped : uffd::Outcome::kDone;
}

uffd::Outcome FakeAddressSpace::install(PageIndex first, std::span<const std::byte> bytes,
                                        uffd::Protection protection) {
  const uffd::PageRun run{first, static_cast<uint32_t>(bytes.size() >> kPageShift)};
  run_hook(before_, Call::kInstall, run);
  log_.add("install " + text_of(run) +
           (protection == uffd::Protection::kWritable ? " writable" : " protected"));
  uffd::Outcome outcome = uffd::Outcome::kDone;
  {
    const std::lock_guard lock(mutex_);
    outcome = check_call(run);
    if (outcome != uffd::Outcome::kDone) return outcome;
    for (uint32_t i = 0; i < run.pages; ++i) {
      const PageIndex page{first.value + i};
      if (rules_.is_free(page)) {
        place(page, bytes.subspan(i * kPageBytes, kPageBytes), protection);
      } else {
        outcome = uffd::Outcome::kAlreadyPresent;
      }
    }
    wake_pages(run);
  }
  run_hook(after_, Call::kInstall, run);
  return outcome;
}

uffd::ZeroResult FakeAddressSpace::zero(uffd::PageRun run, uffd::ZeroFrames frames) {
  run_hook(before_, Call::kZero, run);
  log_.add("zero " + text_of(run) + (frames == uffd::ZeroFrames::kOwn ? " own" : " shared"));
  uffd::ZeroResult result;
  {
    const std::lock_guard lock(mutex_);
    result.outcome = check_call(run);
    if (result.outcome != uffd::Outcome::kDone) return result;
    const std::vector<std::byte> zeros(kPageBytes);
    while (result.pages < run.pages) {
      const PageIndex page{run.first.value + result.pages};
      if (!rules_.is_free(page)) {
        result.outcome = uffd::Outcome::kAlreadyPresent;
        break;
      }
      place(page, zeros, uffd::Protection::kWritable);
      ++result.pages;
    }
    wake_pages({run.first, std::min(result.pages + 1, run.pages)});
  }
  run_hook(after_, Call::kZero, run);
  return result;
}

uffd::Outcome FakeAddressSpace::protect(uffd::PageRun run) {
  run_hook(before_, Call::kProtect, run);
  log_.add("protect " + text_of(run));
  uffd::Outcome outcome = uffd::Outcome::kDone;
  {
    const std::lock_guard lock(mutex_);
    outcome = check_call(run);
    for (uint32_t i = 0; outcome == uffd::Outcome::kDone && i < run.pages; ++i)
      (void)rules_.protect(PageIndex{run.first.value + i});
  }
  run_hook(after_, Call::kProtect, run);
  return outcome;
}

uffd::Outcome FakeAddressSpace::unprotect(uffd::PageRun run) {
  run_hook(before_, Call::kUnprotect, run);
  log_.add("unprotect " + text_of(run));
  uffd::Outcome outcome = uffd::Outcome::kDone;
  {
    const std::lock_guard lock(mutex_);
    outcome = check_call(run);
    for (uint32_t i = 0; outcome == uffd::Outcome::kDone && i < run.pages; ++i)
      rules_.unprotect(PageIndex{run.first.value + i});
    if (outcome == uffd::Outcome::kDone) wake_pages(run);
  }
  run_hook(after_, Call::kUnprotect, run);
  return outcome;
}

Status FakeAddressSpace::read_locked(std::unique_lock<std::mutex>& lock, PageIndex page,
                                     std::span<std::byte> out) {
  const auto thread = static_cast<uint32_t>(::gettid());
  if (readers_wait_ && !is_readable(page) && rules_[page].mapped &&
      !touch({.page = page.value, .thread = thread}))
    changed_.wait(lock, [&] { return !alive_ || is_readable(page) || rules_[page].poisoned; });
  if (!alive_ || !is_readable(page)) return fail(ErrorCode::kIo, "the page is not readable");
  std::ranges::copy(contents_[page.value].bytes, out.begin());
  return {};
}

Status FakeAddressSpace::read(std::span<const PageIndex> present, std::span<std::byte> out) {
  std::vector<uffd::PageRun> runs;
  for (const PageIndex page : present) {
    if (!runs.empty() && runs.back().first.value + runs.back().pages == page.value) {
      ++runs.back().pages;
    } else {
      runs.push_back({page, 1});
    }
  }
  for (const uffd::PageRun run : runs) {
    run_hook(before_, Call::kRead, run);
    log_.add("read " + text_of(run));
  }
  {
    std::unique_lock lock(mutex_);
    for (size_t i = 0; i < present.size(); ++i) {
      const Status read = read_locked(lock, present[i], out.subspan(i * kPageBytes, kPageBytes));
      if (!read) return read;
    }
  }
  for (const uffd::PageRun run : runs) run_hook(after_, Call::kRead, run);
  return {};
}

Status FakeAddressSpace::drop(std::span<const uffd::PageRun> runs,
                              std::span<uffd::DropResult> results, Nanoseconds patience) {
  FARPAGE_CHECK(runs.size() == results.size(), "%zu results", results.size());
  for (const uffd::PageRun run : runs) {
    run_hook(before_, Call::kDrop, run);
    log_.add("drop " + text_of(run));
  }
  {
    const std::lock_guard lock(mutex_);
    FARPAGE_CHECK(to_drop_.empty(), "%zu runs are being dropped", to_drop_.size());
    to_drop_.assign(runs.begin(), runs.end());
    dropped_.clear();
  }
  if (!drops_later_) do_drop();
  const Status ended = await_drop(results, patience);
  for (const uffd::PageRun run : runs) run_hook(after_, Call::kDrop, run);
  return ended;
}

Status FakeAddressSpace::prepare_drop(Nanoseconds) {
  if (agent_stands_) return fail(ErrorCode::kTimedOut, "the agent stands");
  log_.add("prepare");
  if (ordered_) order_.begin_changing();
  return {};
}

bool FakeAddressSpace::end_drop() {
  if (ordered_) order_.end_changing();
  return false;
}

void FakeAddressSpace::end_reading() {
  if (ordered_) order_.end_reading();
}

// Never waits: a test that wants the drop to be late would have to wait too.
Status FakeAddressSpace::await_drop(std::span<uffd::DropResult> results, Nanoseconds) {
  const std::lock_guard lock(mutex_);
  if (!alive_) {
    to_drop_.clear();
    return fail(ErrorCode::kNotFound, "the program has ended");
  }
  if (dropped_.size() < to_drop_.size()) return fail(ErrorCode::kTimedOut, "it goes on");
  FARPAGE_CHECK(results.size() == dropped_.size(), "%zu results of %zu", results.size(),
                dropped_.size());
  std::ranges::copy(dropped_, results.begin());
  to_drop_.clear();
  dropped_.clear();
  return {};
}

Status FakeAddressSpace::poison(uffd::PageRun run) {
  run_hook(before_, Call::kPoison, run);
  log_.add("poison " + text_of(run));
  {
    const std::lock_guard lock(mutex_);
    if (check_call(run) == uffd::Outcome::kRetry)
      return fail(ErrorCode::kUnavailable, "an event is queued");
    for (uint32_t i = 0; i < run.pages; ++i) rules_.poison(PageIndex{run.first.value + i});
    wake_pages(run);
  }
  run_hook(after_, Call::kPoison, run);
  return {};
}

bool FakeAddressSpace::event_pending() {
  run_hook(before_, Call::kEventPending, {});
  bool pending = false;
  {
    const std::lock_guard lock(mutex_);
    pending = !events_.empty();
  }
  run_hook(after_, Call::kEventPending, {});
  return pending;
}

bool FakeAddressSpace::alive() {
  const std::lock_guard lock(mutex_);
  return alive_;
}

void FakeAddressSpace::wake(uffd::PageRun run) {
  run_hook(before_, Call::kWake, run);
  log_.add("wake " + text_of(run));
  {
    const std::lock_guard lock(mutex_);
    wake_pages(run);
  }
  run_hook(after_, Call::kWake, run);
}

}  // namespace farpage::pager
