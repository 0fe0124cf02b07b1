#include "program.h"

#include <algorithm>

namespace farpage::simulation {
namespace {

constexpr Nanoseconds kHandlers = std::chrono::microseconds(20);
constexpr Nanoseconds kLongHandlers = Milliseconds(3);

}  // namespace

// ---- a word ----

void Word::begin_write(uint64_t value) {
  writing_ = true;
  possible_.push_back(value);
  log_.push_back(value);
}

void Word::end_write(uint64_t value) {
  writing_ = false;
  possible_ = {value};
}

void Word::clear(bool surely) {
  if (surely) {
    possible_ = {0};
  } else {
    possible_.push_back(0);
  }
  log_.push_back(0);
}

bool Word::may_be(uint64_t value, const std::vector<uint64_t>& possible_before,
                  uint64_t writes_before) const {
  return std::ranges::find(possible_before, value) != possible_before.end() ||
         std::find(log_.begin() + static_cast<std::ptrdiff_t>(writes_before), log_.end(), value) !=
             log_.end();
}

void Word::found(uint64_t value, uint64_t writes_before) {
  if (!writing_ && writes_before == log_.size()) possible_ = {value};
}

std::string Word::text() const {
  std::string text;
  for (const uint64_t value : possible_)
    text += (text.empty() ? "" : " or ") + std::to_string(value);
  return text;
}

// ---- the program ----

// The shim sends one request at a time, and holds this while it drops what it has discarded.
class Program::ShimLock {
 public:
  explicit ShimLock(Program& program) : program_(program) {
    while (program_.shim_locked_)
      (void)program_.scheduler_.wait(&program_.shim_locked_, Nanoseconds(-1));
    program_.shim_locked_ = true;
  }
  ~ShimLock() {
    program_.shim_locked_ = false;
    program_.scheduler_.notify(&program_.shim_locked_);
  }
  ShimLock(const ShimLock&) = delete;
  ShimLock& operator=(const ShimLock&) = delete;

 private:
  Program& program_;
};

Program::Program(Scheduler& scheduler, SimulatedSpace& space, uint64_t threads,
                 const Habits& habits, const ProgramLimits& limits, Forks& forks, OnFork on_fork)
    : scheduler_(scheduler),
      space_(space),
      threads_(threads),
      habits_(habits),
      limits_(limits),
      forks_(forks),
      on_fork_(std::move(on_fork)),
      words_(threads * habits.pages),
      lost_(space.pages()),
      unmapped_(space.pages()),
      uncertain_(space.pages()),
      discarding_(space.pages()) {}

Program::Program(Program& parent, SimulatedSpace& space, Copy copy)
    : scheduler_(parent.scheduler_),
      space_(space),
      threads_(parent.threads_),
      habits_(parent.habits_),
      limits_(parent.limits_),
      forks_(parent.forks_),
      on_fork_(parent.on_fork_),
      is_child_(true),
      words_(std::move(copy.words)),
      lost_(parent.lost_),
      unmapped_(parent.unmapped_),
      uncertain_(std::move(copy.uncertain)),
      discarding_(parent.discarding_.size()) {}

void Program::connect(Requests& requests) {
  requests_ = &requests;
  scheduler_.notify(&requests_);
}

Requests* Program::pager() {
  while (requests_ == nullptr && goes_on()) (void)scheduler_.wait(&requests_, Milliseconds(1));
  return requests_;
}

void Program::end() {
  if (space_.ended()) return;
  space_.exit();
  scheduler_.notify(&requests_);
}

// ---- threads ----

PageIndex Program::own_page(uint64_t thread) {
  // A child's one thread has all pages.
  if (is_child_) thread = scheduler_.choose(threads_);
  return PageIndex{first_page(thread) + scheduler_.choose(habits_.pages)};
}

void Program::run(uint64_t thread) {
  // A program ends with its first SIGBUS.
  for (uint64_t i = 0; i < habits_.accesses && goes_on(); ++i) {
    if (one_in(habits_.ends * habits_.accesses) && !forking_) end();
    act(thread);
  }
}

void Program::act(uint64_t thread) {
  const PageIndex page = own_page(thread);
  if (one_in(habits_.walks)) {
    walk(thread);
  } else if (one_in(habits_.discards)) {
    discard(page);
  } else if (one_in(habits_.hints)) {
    hint(page);
  } else if (one_in(habits_.pins)) {
    pin(page);
  } else if (one_in(habits_.drops_past_shim)) {
    drop_past_shim(page);
  } else if (one_in(habits_.unmaps_past_shim)) {
    unmap_past_shim(page);
  } else if (one_in(habits_.forks)) {
    fork();
  } else if (scheduler_.chance(8)) {
    read(own_page(scheduler_.choose(threads_)));
  } else if (scheduler_.chance(2)) {
    write(page);
  } else {
    read(page);
  }
}

void Program::walk(uint64_t thread) {
  if (is_child_) thread = scheduler_.choose(threads_);
  const uint64_t start = scheduler_.choose(habits_.pages / 2);
  const bool writes = scheduler_.chance(2);
  uint64_t next = first_page(thread) + start;
  for (uint64_t i = 0; i < habits_.pages / 2 - 1 && goes_on(); ++i, ++next) {
    if (writes) {
      write(PageIndex{next});
    } else {
      read(PageIndex{next});
    }
  }
  // What comes next may be on its way already.
  if (habits_.discards > 0 && scheduler_.chance(2)) discard(PageIndex{next + scheduler_.choose(2)});
}

bool Program::may_lack(PageIndex page) {
  return (is_child_ || has_failed()) && may_use(page) &&
         std::ranges::all_of(words_of(page), [](const Word& word) {
           return std::ranges::find(word.possible(), uint64_t{0}) != word.possible().end();
         });
}

void Program::read_all() {
  for (uint64_t thread = 0; thread < threads_; ++thread)
    for (uint64_t i = 0; i < habits_.pages && goes_on(); ++i)
      read(PageIndex{first_page(thread) + i});
}

// ---- accesses ----

void Program::read(PageIndex page) {
  if (!may_use(page)) return;
  const auto index = static_cast<uint32_t>(scheduler_.choose(kWords));
  Word& word = words_of(page)[index];
  const std::vector<uint64_t> possible = word.possible();
  const uint64_t writes = word.writes();
  const Instant start = scheduler_.now();
  uint64_t found = 0;
  const Access access = space_.read_word(page, index, found);
  note_end(page, start, access);
  if (access != Access::kDone || unmapped_[page.value]) return;
  if (!word.may_be(found, possible, writes))
    scheduler_.fail("space " + std::to_string(space_.number()) + " page " +
                    std::to_string(page.value) + ": read " + std::to_string(found) +
                    ", last written " + word.text());
  word.found(found, writes);
}

void Program::write(PageIndex page) {
  if (!may_use(page)) return;
  const auto index = static_cast<uint32_t>(scheduler_.choose(kWords));
  Word& word = words_of(page)[index];
  // No two writes of a run are the same, but for zeros.
  const uint64_t value = scheduler_.chance(6) ? 0 : scheduler_.steps();
  const Instant start = scheduler_.now();
  word.begin_write(value);
  const Access access = space_.write_word(page, index, value);
  note_end(page, start, access);
  if (access == Access::kDone) word.end_write(value);
}

// As the shim does madvise(MADV_DONTNEED): the pager first, then the kernel.
void Program::discard(PageIndex page) {
  if (!may_use(page) || pager() == nullptr || !goes_on()) return;
  const ShimLock lock(*this);
  for (Word& word : words_of(page)) word.clear(false);
  discarding_[page.value] = true;
  requests_->ask([page](pager::Pager& pager) {
    if (!pager.try_discard({page, 1})) pager.discard({page, 1});
  });
  if (!space_.ended()) space_.zap(page);
  discarding_[page.value] = false;
  uncertain_[page.value] = false;
  for (Word& word : words_of(page)) word.clear(true);
}

// The pager does not learn of it: the page is zeros, if it was here. A forked child may get an
// older content of a page that its pager does not know it has.
void Program::drop_past_shim(PageIndex page) {
  if (is_child_) return;
  // Soon after it came, and soon used again: its fetch may not be over.
  read(page);
  if (!may_use(page) || !goes_on()) return;
  uncertain_[page.value] = true;
  for (Word& word : words_of(page)) word.clear(false);
  space_.zap(page);
  read(page);
}

void Program::unmap_past_shim(PageIndex page) {
  if (!may_use(page)) return;
  unmapped_[page.value] = true;
  forks_.unmapped.insert(page);
  space_.unmap(page);
}

void Program::hint(PageIndex page) {
  if (pager() == nullptr) return;
  const uffd::PageRun run{page, static_cast<uint32_t>(1 + scheduler_.choose(8))};
  const uint64_t kind = scheduler_.choose(4);
  {
    const ShimLock lock(*this);
    if (kind < 2) {
      requests_->ask([run](pager::Pager& pager) { pager.hint_cold(run); });
    } else if (kind == 2) {
      requests_->ask([run](pager::Pager& pager) { pager.hint_willneed(run); });
    } else {
      const auto pattern = scheduler_.chance(2)   ? pager::AccessPattern::kNormal
                           : scheduler_.chance(2) ? pager::AccessPattern::kRandom
                                                  : pager::AccessPattern::kSequential;
      requests_->ask([run, pattern](pager::Pager& pager) { pager.advise(run, pattern); });
    }
  }
  if (kind != 2 || habits_.discards == 0 || scheduler_.chance(2)) return;
  // They may be on their way now.
  scheduler_.sleep(scheduler_.choose_time(std::chrono::microseconds(100)));
  for (uint64_t i = 0; i < run.pages && is_used(PageIndex{page.value + i}); ++i)
    discard(PageIndex{page.value + i});
}

// mlock(2), some accesses, munlock(2).
void Program::pin(PageIndex page) {
  if (!may_use(page) || pager() == nullptr || !goes_on()) return;
  {
    const ShimLock lock(*this);
    bool pinned = false;
    requests_->ask([&](pager::Pager& pager) { pinned = pager.pin({page, 1}); });
    if (!pinned) return;
  }
  read(page);  // as the kernel does
  for (int i = 0; i < 10 && goes_on(); ++i) {
    scheduler_.sleep(scheduler_.choose_time(std::chrono::microseconds(200)));
    if (goes_on() && may_use(page) && !uncertain_[page.value] && !space_.is_present(page))
      scheduler_.fail("page " + std::to_string(page.value) + " was evicted, although it is pinned");
  }
  const ShimLock lock(*this);
  requests_->ask([page](pager::Pager& pager) { pager.unpin({page, 1}); });
}

// As the shim does it. One at a time.
void Program::fork() {
  if (pager() == nullptr || !goes_on() || forking_ || forks_.left == 0) return;
  forking_ = true;
  --forks_.left;
  ++forks_begun_;
  bool allowed = false;
  {
    const ShimLock lock(*this);
    requests_->ask(
        [&](pager::Pager& pager) { allowed = pager.is_forking() || pager.begin_fork(); });
  }
  if (allowed) {
    Copy copy;
    const auto copy_page = [&](PageIndex page) {
      copy.uncertain.push_back(uncertain_[page.value] || discarding_[page.value]);
      if (!is_used(page) || copy.words.size() == words_.size()) return;
      copy.words.emplace_back();
      for (uint32_t i = 0; i < kWords; ++i) copy.words.back()[i] = words_of(page)[i].copy();
    };
    // Handlers of pthread_atfork(3).
    scheduler_.sleep(scheduler_.choose_time(scheduler_.chance(3) ? kLongHandlers : kHandlers));
    std::function<void()> run_child;
    space_.fork(forks_.next_number++, copy_page, [&](std::unique_ptr<SimulatedSpace> child) {
      run_child = on_fork_(std::move(child), *this, std::move(copy));
    });
    run_child();
    const ShimLock lock(*this);
    requests_->ask([](pager::Pager& pager) {
      if (pager.is_forking()) pager.end_fork(true);
    });
  }
  forking_ = false;
}

void Program::note_end(PageIndex page, Instant start, Access access) {
  const Nanoseconds taken = scheduler_.now() - start;
  if (taken > limits_.longest_access)
    scheduler_.fail("page " + std::to_string(page.value) + ": an access took " +
                    std::to_string(taken.count() / 1'000'000) + " ms");
  if (access != Access::kBusError || unmapped_[page.value]) return;
  if (!limits_.may_lose_pages) scheduler_.fail("page " + std::to_string(page.value) + " was lost");
  lost_[page.value] = true;
  ++bus_errors_;
}

}  // namespace farpage::simulation
