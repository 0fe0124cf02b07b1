// EventLog: the latest events, numbered, for readers that ask for the events after N.
#pragma once

#include <cstdint>
#include <deque>

#include "coordinator/api.h"

namespace farpage::coordinator {

// Threads: one at a time.
// Invariants:
//  1. Sequence numbers rise by one with each event and are never reused, not even after a restart:
//     start after the last number in the store, or after the wall clock in microseconds.
//  2. Events base_ + 1 .. last() are kept; at most `capacity` of them.
class EventLog {
 public:
  // `earlier_events`: events up to `start` existed and were dropped.
  EventLog(size_t capacity, uint64_t start, bool earlier_events);

  void append(Event event);  // sets its sequence
  // Events after `since` (0: all that are kept) and up to `until`, which is at most last().
  EventBatch since(uint64_t since, uint64_t until) const;
  EventBatch since(uint64_t since) const { return this->since(since, last()); }
  uint64_t last() const { return base_ + events_.size(); }

 private:
  const size_t capacity_;
  uint64_t base_;
  bool forgotten_;
  std::deque<Event> events_;
};

}  // namespace farpage::coordinator
