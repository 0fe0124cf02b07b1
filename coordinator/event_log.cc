#include "coordinator/event_log.h"

namespace farpage::coordinator {

EventLog::EventLog(size_t capacity, uint64_t start, bool earlier_events)
    : capacity_(capacity), base_(start), forgotten_(earlier_events) {}

void EventLog::append(Event event) {
  event.sequence = last() + 1;
  events_.push_back(std::move(event));
  if (events_.size() > capacity_) {
    events_.pop_front();
    ++base_;
    forgotten_ = true;
  }
}

EventBatch EventLog::since(uint64_t since, uint64_t until) const {
  EventBatch batch;
  batch.next_since = until;
  // A number above `until` came from another coordinator: the reader has seen none of these events.
  const bool known = since >= base_ && since <= until;
  batch.missed = since == 0 ? forgotten_ : !known;
  const auto skip = known ? static_cast<std::ptrdiff_t>(since - base_) : 0;
  const auto end = until > base_ ? static_cast<std::ptrdiff_t>(until - base_) : 0;
  batch.events.assign(events_.begin() + skip, events_.begin() + end);
  return batch;
}

}  // namespace farpage::coordinator
