#include "scheduler.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace farpage::simulation {
namespace {

constexpr size_t kStackBytes = size_t{512} << 10;   // PagerStats has half of that
constexpr uint64_t kMaxSteps = 20'000'000;          // of one run
constexpr Instant kMaxTime = Seconds(1000 + 1000);  // the first second of a run is the 1000th
// A fiber is delayed for long, as by the scheduler of a busy machine, at one step in this many.
constexpr uint64_t kDelays = 400;
constexpr uint64_t kDelaysAtAtomics = 12;  // of the switches there
constexpr std::array<uint64_t, 4> kAtomicsBetween{5, 20, 80, 400};

void* new_stack() {
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return memory;
}

}  // namespace

Scheduler::Scheduler(uint64_t seed, Trace& trace) : trace_(trace), random_state_(seed) {
  atomics_between_ = kAtomicsBetween[choose(kAtomicsBetween.size())];
}

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
uint64_t Scheduler::random() {
  random_state_ += 0x9e3779b97f4a7c15U;
  uint64_t z = random_state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

uint64_t Scheduler::choose(uint64_t end) {
  if (end <= 1) return 0;
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(random()) * end) >> 64);
}

void Scheduler::run(std::function<void()> first) {
  main_ = spawn(std::move(first), "main");
  if (::_setjmp(outside_) == 0 && pick()) {
    running_ = this;
    continue_current();
  }
  running_ = nullptr;
}

Scheduler::FiberId Scheduler::spawn(std::function<void()> body, const char* name) {
  auto fiber = std::make_unique<Fiber>();
  fiber->stack = new_stack();
  fiber->body = std::move(body);
  ::getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  ::makecontext(&fiber->context, &Scheduler::start, 0);
  fibers_.push_back(std::move(fiber));
  const FiberId id = fibers_.size() - 1;
  living_.push_back(id);
  trace_.set_name(id, name);
  return id;
}

void Scheduler::start() {
  Scheduler& self = *running_;
  Fiber& fiber = *self.fibers_[self.current_];
  fiber.body();
  fiber.body = nullptr;
  fiber.ended = true;
  std::erase(self.living_, self.current_);
  self.over_ = self.over_ || self.current_ == self.main_;
  self.notify(&fiber);
  self.switch_away();
  std::abort();  // an ended fiber never continues
}

void Scheduler::abandon(FiberId fiber) {
  if (fibers_[fiber]->ended) return;
  fibers_[fiber]->ended = true;
  std::erase(living_, fiber);
  notify(fibers_[fiber].get());
}

void Scheduler::abandon_threads() {
  for (const FiberId thread : threads_) abandon(thread);
  threads_.clear();
}

void Scheduler::join(FiberId fiber) {
  while (!fibers_[fiber]->ended) (void)wait(fibers_[fiber].get(), Nanoseconds(-1));
}

void Scheduler::switch_away() {
  const int sys_errno = errno;
  const FiberId before = current_;
  if (over_ || !pick()) ::_longjmp(outside_, 1);
  if (current_ == before && !fibers_[before]->ended) return;
  // swapcontext(3) would need a system call for the signal mask.
  if (::_setjmp(fibers_[before]->place) == 0) continue_current();
  errno = sys_errno;
}

void Scheduler::continue_current() {
  Fiber& fiber = *fibers_[current_];
  if (fiber.started) ::_longjmp(fiber.place, 1);
  fiber.started = true;
  ::setcontext(&fiber.context);
}

bool Scheduler::may_continue(Fiber& fiber) {
  if (!fiber.waits || fiber.until <= now_) return true;
  if (fiber.polls.empty() || fiber.polled == descriptors_.changes()) return false;
  fiber.polled = descriptors_.changes();
  if (descriptors_.poll(fiber.polls) == 0) return false;
  fiber.waits = false;
  fiber.timed_out = false;
  return true;
}

// Chooses the fiber that continues. False: none can.
bool Scheduler::pick() {
  if (++steps_ > kMaxSteps || now_ > kMaxTime) {
    failure_ = "no end after " + std::to_string(steps_) + " steps";
    return false;
  }
  while (true) {
    runnable_.clear();
    Instant next{INT64_MAX};
    for (const FiberId i : living_) {
      Fiber& fiber = *fibers_[i];
      if (may_continue(fiber)) {
        runnable_.push_back(i);
      } else {
        next = std::min(next, fiber.until);
      }
    }
    if (!runnable_.empty()) break;
    if (next.count() == INT64_MAX) {
      failure_ = "every thread waits, and none for a time";
      return false;
    }
    now_ = next;
  }
  current_ = runnable_[choose(runnable_.size())];
  Fiber& fiber = *fibers_[current_];
  fiber.timed_out = fiber.waits && fiber.until <= now_;
  fiber.waits = false;
  fiber.polls = {};
  fiber.key = nullptr;
  now_ += Nanoseconds(100 + choose(400));
  trace_hash_ =
      (trace_hash_ ^ (current_ + 1) ^ static_cast<uint64_t>(now_.count())) * 1099511628211U;
  return true;
}

bool Scheduler::block(const void* key, std::span<pollfd> polls, Nanoseconds time) {
  Fiber& fiber = *fibers_[current_];
  fiber.waits = true;
  fiber.key = key;
  fiber.polls = polls;
  fiber.polled = descriptors_.changes();
  fiber.until = time.count() < 0 ? Instant(INT64_MAX) : now_ + time;
  switch_away();
  return !fiber.timed_out;
}

// Mostly short, at times longer than any pause of the product.
void Scheduler::delay() {
  sleep(choose_time(chance(8) ? Nanoseconds(30'000'000) : Nanoseconds(300'000)));
}

void Scheduler::step() {
  if (chance(kDelays)) {
    delay();
  } else if (chance(2)) {
    switch_away();
  }
}

void Scheduler::switch_at_atomic() {
  atomics_left_ = static_cast<int64_t>(1 + choose(2 * atomics_between_));
  if (chance(kDelaysAtAtomics)) {
    sleep(choose_time(chance(16) ? Nanoseconds(5'000'000) : Nanoseconds(30'000)));
  } else {
    switch_away();
  }
}

void Scheduler::sleep(Nanoseconds time) {
  (void)block(nullptr, {}, std::max(time, Nanoseconds(0)));
}

bool Scheduler::wait(const void* key, Nanoseconds time) {
  return block(key, {}, time);
}

void Scheduler::notify(const void* key) {
  for (const FiberId i : living_) {
    Fiber& fiber = *fibers_[i];
    if (!fiber.waits || fiber.key != key || key == nullptr) continue;
    fiber.waits = false;
    fiber.timed_out = false;
  }
}

int Scheduler::wait_for_descriptors(std::span<pollfd> polls, Nanoseconds time) {
  const int ready = descriptors_.poll(polls);
  if (ready != 0 || time.count() == 0) return ready;
  (void)block(nullptr, polls, time);
  return descriptors_.poll(polls);
}

void Scheduler::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  over_ = true;
  switch_away();
  std::abort();  // the run is over
}

}  // namespace farpage::simulation
