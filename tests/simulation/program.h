// Program: the threads of one simulated process, and what they must find in its memory.
#pragma once

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "pager/pager.h"
#include "requests.h"
#include "scheduler.h"
#include "simulated_space.h"

namespace farpage::simulation {

// What one word of a page may contain. A word has one writer at a time.
class Word {
 public:
  // It is one of these; a write that is under way may have taken place.
  void begin_write(uint64_t value);
  void end_write(uint64_t value);
  // It was discarded (or was not, `surely` false: then a later read decides).
  void clear(bool surely);
  // A reader began when there had been `writes` writes.
  uint64_t writes() const { return log_.size(); }
  bool may_be(uint64_t value, const std::vector<uint64_t>& possible_before,
              uint64_t writes_before) const;
  const std::vector<uint64_t>& possible() const { return possible_; }
  // A read without a write meanwhile has found it.
  void found(uint64_t value, uint64_t writes_before);
  // In the child of a fork, at the moment when the kernel copies the page.
  Word copy() const {
    Word copied;
    copied.possible_ = possible_;
    return copied;
  }
  std::string text() const;

 private:
  std::vector<uint64_t> possible_{0};
  std::vector<uint64_t> log_;  // every value that it may have had
  bool writing_ = false;
};

struct ProgramLimits {
  Nanoseconds longest_access;  // then an access has failed
  bool may_lose_pages;         // all nodes with a copy may have died
};

// Chosen once for each run, so that runs differ.
struct Habits {
  uint64_t pages = 60;      // of each thread
  uint64_t accesses = 100;  // of each thread
  uint64_t walks = 12;      // one in so many actions; 0: never. The same for the next ones.
  uint64_t discards = 24;
  uint64_t hints = 24;
  uint64_t pins = 0;
  uint64_t drops_past_shim = 0;
  uint64_t unmaps_past_shim = 0;
  uint64_t forks = 0;
  uint64_t ends = 0;  // in the middle
};

// Of all programs of a run.
struct Forks {
  uint64_t left = 4;         // more would take too much time
  uint32_t next_number = 3;  // of a child's space
  // Past the shim, by any program: a child may have such a page, and its pager not know of it, if
  // it was used and unmapped around the fork.
  std::set<PageIndex> unmapped{};
};

// Threads: fibers of one scheduler.
class Program {
 public:
  // The ranges of threads lie across the borders of slabs.
  static uint64_t pages_for(const Habits& habits, uint64_t threads) {
    return threads * stride(habits) + kSlabPages;
  }

  // Of each page that is used: thread after thread.
  using Words = std::vector<std::array<Word, kWords>>;
  // What the kernel copies for a child.
  struct Copy {
    Words words;
    std::vector<bool> uncertain;  // is_uncertain()
  };
  // Makes the child of a fork: the parent's program. What it returns starts the child's thread.
  using OnFork = std::function<std::function<void()>(std::unique_ptr<SimulatedSpace> space,
                                                     Program& parent, Copy copy)>;

  Program(Scheduler& scheduler, SimulatedSpace& space, uint64_t threads, const Habits& habits,
          const ProgramLimits& limits, Forks& forks, OnFork on_fork);
  // A forked child.
  Program(Program& parent, SimulatedSpace& space, Copy copy);

  // The shim's requests are answered from now on.
  void connect(Requests& requests);
  bool connected() const { return requests_ != nullptr; }
  uint64_t forks() const { return forks_begun_; }
  // One thread, which uses its own pages, and reads those of others.
  void run(uint64_t thread);
  void read_all();
  // Every thread ends, wherever it is.
  void end();

  SimulatedSpace& space() { return space_; }
  uint64_t threads() const { return threads_; }
  bool has_failed() const { return bus_errors_ > 0; }
  uint64_t bus_errors() const { return bus_errors_; }
  bool is_unmapped(PageIndex page) const { return unmapped_[page.value]; }
  // Presence and table may differ: what was done past the shim, or at the moment of a fork.
  bool is_uncertain(PageIndex page) const {
    return uncertain_[page.value] || forks_.unmapped.contains(page);
  }
  // In a forked child: the pager may count a page of zeros as present that was never placed,
  // because its parent touched it for the first time at the moment of the fork (settle_empty). The
  // next touch, or the eviction, finds that out. And where one thread touches a page that another
  // one is about to drop: then read_all() does, but not in a program that has failed.
  bool may_lack(PageIndex page);

 private:
  class ShimLock;
  static constexpr uint64_t kSlabPages = 512;
  static uint64_t stride(const Habits& habits) {
    return (habits.pages + kSlabPages) / kSlabPages * kSlabPages;
  }
  uint64_t first_page(uint64_t thread) const { return thread * stride(habits_) + kSlabPages - 30; }
  bool is_used(PageIndex page) const {
    return page.value >= first_page(0) &&
           (page.value - first_page(0)) % stride(habits_) < habits_.pages;
  }
  std::array<Word, kWords>& words_of(PageIndex page) {
    const uint64_t place = page.value - first_page(0);
    return words_[place / stride(habits_) * habits_.pages + place % stride(habits_)];
  }
  bool goes_on() const { return bus_errors_ == 0 && !space_.ended(); }
  bool one_in(uint64_t actions) { return actions != 0 && scheduler_.chance(actions); }
  PageIndex own_page(uint64_t thread);
  void act(uint64_t thread);
  void walk(uint64_t thread);
  void read(PageIndex page);
  void write(PageIndex page);
  void discard(PageIndex page);
  void drop_past_shim(PageIndex page);
  void unmap_past_shim(PageIndex page);
  void hint(PageIndex page);
  void pin(PageIndex page);
  void fork();
  bool may_use(PageIndex page) const { return !lost_[page.value] && !unmapped_[page.value]; }
  void note_end(PageIndex page, Instant start, Access access);
  // Requests of a child wait until it has a pager.
  Requests* pager();

  Scheduler& scheduler_;
  SimulatedSpace& space_;
  const uint64_t threads_;
  const Habits habits_;
  const ProgramLimits limits_;
  Forks& forks_;
  const OnFork on_fork_;
  const bool is_child_ = false;
  Requests* requests_ = nullptr;
  Words words_;
  std::vector<bool> lost_;
  std::vector<bool> unmapped_;
  std::vector<bool> uncertain_;
  std::vector<bool> discarding_;
  bool shim_locked_ = false;
  bool forking_ = false;
  uint64_t forks_begun_ = 0;
  uint64_t bus_errors_ = 0;
};

}  // namespace farpage::simulation
