// EventOrder: orders the kernel's messages on what a program does to its mappings against what a
// pager does to its pages.
//
// Where nobody tells beforehand that a mapping is about to change, only the userfaultfd's messages
// do. Until such a message is read the kernel refuses to place or move pages (EAGAIN). From then on
// it accepts them, but the page table does not know yet: a page that was given up would be placed
// with its old bytes. So messages are read and applied in one section, and pages are placed, moved
// and unprotected in sections of the other kind. Sections of one kind exclude those of the other;
// any number of the second kind go on at once.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace farpage {

// Threads: any; a section may end in another thread than it began. What was done in a section is
// seen in each one of the other kind that begins after it: its end releases, and a begin acquires.
class EventOrder {
 public:
  // False: pages are being changed, or another thread reads. Never waits: the reader tries again.
  [[nodiscard]] bool try_begin_reading() {
    uint32_t none = 0;
    const bool begun = state_.compare_exchange_strong(none, kReading, std::memory_order_acquire,
                                                      std::memory_order_relaxed);
    wanted_.store(!begun, std::memory_order_relaxed);
    return begun;
  }
  // A thread has tried to read in vain, and none has read since: who changes pages in long sections
  // lets it begin before the next one.
  bool is_reading_wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void end_reading() { state_.store(0, std::memory_order_release); }

  // Waits while another thread reads, which takes microseconds. A thread may begin a section within
  // one of its own.
  void begin_changing() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while (state == kReading ||
           !state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
      if (state == kReading) ::sched_yield();
      state = state_.load(std::memory_order_relaxed);
    }
  }
  void end_changing() { state_.fetch_sub(1, std::memory_order_release); }

  // A section that changes pages becomes one that reads, when it is the only one.
  void become_reading() {
    uint32_t alone = 1;
    while (!state_.compare_exchange_weak(alone, kReading, std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
      alone = 1;
      ::sched_yield();
    }
  }

 private:
  static constexpr uint32_t kReading = UINT32_MAX;

  std::atomic<uint32_t> state_{0};  // kReading, or the number of sections that change pages
  std::atomic<bool> wanted_{false};
};

// A section in which pages are changed; of nothing where there is no order to keep.
class ChangingPages {
 public:
  explicit ChangingPages(EventOrder* order) : order_(order) {
    if (order_ != nullptr) order_->begin_changing();
  }
  ~ChangingPages() {
    if (order_ != nullptr) order_->end_changing();
  }
  ChangingPages(const ChangingPages&) = delete;
  ChangingPages& operator=(const ChangingPages&) = delete;

 private:
  EventOrder* const order_;
};

}  // namespace farpage
