// EventLog: the latest events, numbered, for readers that ask "what came after N".
#pragma once

#include <cstdint>
#include <deque>

#include "coordinator/api.h"

namespace farpage::coordinator {

// Threads: one at a time.
// Invariants:
//  1. Sequence numbers rise by one with each event and are never used again, not even after a
//     restart: start behind what the store remembers, or behind the wall clock in microseconds.
//  2. Events base_ + 1 .. last() are kept; at most `capacity` of them.
class EventLog {
 public:
  // `earlier_events`: events up to `start` existed and are forgotten.
  EventLog(size_t capacity, uint64_t start, bool earlier_events);

  void append(Event event);  // its sequence is set here
  // Events after `since`. 0 means everything kept. Never waits.
  EventBatch since(uint64_t since) const;
  uint64_t last() const { return base_ + events_.size(); }

 private:
  const size_t capacity_;
  uint64_t base_;
  bool forgotten_;
  std::deque<Event> events_;
};

}  // namespace farpage::coordinator
