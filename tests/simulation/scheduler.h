// Scheduler: runs all threads of a test as fibers of one thread, with simulated time. Which fiber
// continues, and how long it is delayed, is chosen by a seed, so a run can be repeated exactly.
//
// The tested code is that of the product, unchanged: libc.cc replaces the calls by which threads
// start, wait, sleep and read the clock, and atomics.cc the product's atomic operations. Each of
// them is a point where another fiber may continue. Between two such points a fiber runs alone, and
// memory is sequentially consistent, so data races are not found here (ThreadSanitizer finds
// those): the simulator looks for wrong orders of correct operations.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "descriptors.h"
#include "trace.h"

namespace farpage::simulation {

// Threads: one; one in a process, which ends when its run has ended.
class Scheduler {
 public:
  // The steps of the run are noted in `trace`.
  Scheduler(uint64_t seed, Trace& trace);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // The one whose fiber runs now; nullptr: libc.cc and atomics.cc then do nothing.
  static Scheduler* running() { return running_; }

  // Runs `first` and all fibers that it starts, until `first` returns. A run that stops making
  // progress ends with fail(); its fibers are abandoned.
  void run(std::function<void()> first);
  // The first failure of this run; empty: none.
  const std::string& failure() const { return failure_; }

  // -- in a fiber --
  using FiberId = size_t;
  // `name`: for the trace, at most Trace::kNameBytes - 1 characters.
  FiberId spawn(std::function<void()> body, const char* name = "");
  // A thread of the product, made by pthread_create(3).
  FiberId spawn_thread(std::function<void()> body, const char* name) {
    threads_.push_back(spawn(std::move(body), name));
    return threads_.back();
  }
  // It ends where it is, as by SIGKILL. Not the caller.
  void abandon(FiberId fiber);
  // All threads of the product.
  void abandon_threads();
  void set_name(FiberId fiber, const char* name) { trace_.set_name(fiber, name); }
  void join(FiberId fiber);
  FiberId self() const { return current_; }
  Instant now() const { return now_; }
  // A number below `end`, chosen by the seed.
  uint64_t choose(uint64_t end);
  bool chance(uint64_t one_in) { return choose(one_in) == 0; }
  Nanoseconds choose_time(Nanoseconds end) {
    return Nanoseconds(static_cast<int64_t>(choose(static_cast<uint64_t>(end.count()))));
  }

  // Another fiber may continue; rarely this one is delayed for long.
  void step();
  // The same before an atomic operation: far less often, because there are many. How often differs
  // from run to run.
  void step_atomic() {
    if (--atomics_left_ <= 0) switch_at_atomic();
  }
  // While one exists, atomic operations do not switch.
  class Undisturbed {
   public:
    explicit Undisturbed(Scheduler& scheduler) : scheduler_(scheduler) {
      left_ = std::exchange(scheduler_.atomics_left_, INT64_MAX);
    }
    ~Undisturbed() { scheduler_.atomics_left_ = left_; }
    Undisturbed(const Undisturbed&) = delete;
    Undisturbed& operator=(const Undisturbed&) = delete;

   private:
    Scheduler& scheduler_;
    int64_t left_;
  };
  void sleep(Nanoseconds time);
  // Continues when notify(key) was called, or the time is over (false; negative: never).
  bool wait(const void* key, Nanoseconds time);
  void notify(const void* key);
  // Continues when one of the descriptors() is ready, or the time is over (negative: never).
  // Returns how many are ready, as poll(2).
  int wait_for_descriptors(std::span<pollfd> polls, Nanoseconds time);
  // Ends the run. Returns never.
  [[noreturn]] void fail(const std::string& why);

  Trace& trace() { return trace_; }
  void note(const Trace::Step& step) { trace_.note(now_, current_, step); }
  Descriptors& descriptors() { return descriptors_; }
  // Depends on every choice: two runs with equal hashes were the same.
  uint64_t trace_hash() const { return trace_hash_; }
  uint64_t steps() const { return steps_; }

 private:
  struct Fiber {
    ucontext_t context{};  // of the start
    jmp_buf place{};       // where it continues
    bool started = false;
    void* stack = nullptr;
    std::function<void()> body;
    bool ended = false;
    bool waits = false;         // for one of the next three
    const void* key = nullptr;  // is notified
    std::span<pollfd> polls{};  // one is ready
    uint64_t polled = 0;        // Descriptors::changes() at the last look
    Instant until{INT64_MAX};   // it is this time
    bool timed_out = false;
  };
  static void start();
  bool block(const void* key, std::span<pollfd> polls, Nanoseconds time);
  bool may_continue(Fiber& fiber);
  void switch_away();
  void continue_current();
  bool pick();
  uint64_t random();
  void delay();
  void switch_at_atomic();

  static inline Scheduler* running_ = nullptr;

  Trace& trace_;
  Descriptors descriptors_;
  uint64_t random_state_;
  uint64_t atomics_between_ = 0;  // switches, on average
  int64_t atomics_left_ = 0;      // until the next one
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<FiberId> living_;
  std::vector<FiberId> threads_;   // of the product
  std::vector<FiberId> runnable_;  // of pick()
  FiberId current_ = 0;
  FiberId main_ = 0;
  jmp_buf outside_{};
  Instant now_{Seconds(1000)};
  uint64_t steps_ = 0;
  uint64_t trace_hash_ = 0;
  std::string failure_;
  bool over_ = false;
};

}  // namespace farpage::simulation
