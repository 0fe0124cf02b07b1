#include "shim/ranges.h"

#include <string.h>
#include <sys/mman.h>

namespace farpage::shim {

long Ranges::open(size_t max_spans) {
  const uint64_t list_bytes = max_spans * sizeof(Span);
  const long address = system_call(SYS_mmap, nullptr, 2 * list_bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (is_error(address)) {
    return address;
  }
  lists_[0].spans = reinterpret_cast<Span*>(address);
  lists_[1].spans = lists_[0].spans + max_spans;
  max_spans_ = max_spans;
  return 0;
}

Span Ranges::find(uint64_t bytes, uint64_t alignment) const {
  const auto& [spans, count] = list();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t begin = (spans[i].begin + alignment - 1) & ~(alignment - 1);
    if (begin < spans[i].end && spans[i].end - begin >= bytes) {
      return {begin, begin + bytes};
    }
  }
  return {};
}

bool Ranges::add(Span span) {
  if (span.empty()) {
    return true;
  }
  const auto& [spans, count] = list();
  // Merges all spans that overlap or touch it into one.
  size_t first = first_ending_after(span.begin);
  if (first > 0 && spans[first - 1].end == span.begin) {
    --first;
  }
  size_t last = first;
  while (last < count && spans[last].begin <= span.end) {
    span.begin = spans[last].begin < span.begin ? spans[last].begin : span.begin;
    span.end = spans[last].end > span.end ? spans[last].end : span.end;
    ++last;
  }
  if (first == last && count == max_spans_) {
    return false;
  }
  replace(first, last, &span, 1);
  return true;
}

bool Ranges::remove(Span span) {
  if (span.empty()) {
    return true;
  }
  const auto& [spans, count] = list();
  const size_t first = first_ending_after(span.begin);
  size_t last = first;
  while (last < count && spans[last].begin < span.end) {
    ++last;
  }
  if (first == last) {
    return true;
  }
  Span rest[2];
  size_t rest_count = 0;
  if (spans[first].begin < span.begin) {
    rest[rest_count++] = {spans[first].begin, span.begin};
  }
  if (spans[last - 1].end > span.end) {
    rest[rest_count++] = {span.end, spans[last - 1].end};
  }
  if (count - (last - first) + rest_count > max_spans_) {
    return false;
  }
  replace(first, last, rest, rest_count);
  return true;
}

Span Ranges::first_in(Span span) const {
  const auto& [spans, count] = list();
  const size_t i = first_ending_after(span.begin);
  return i < count && spans[i].begin < span.end ? overlap(spans[i], span) : Span{};
}

// The list that is read changes only after another one has been published.
Span Ranges::first_in_unlocked(Span span) const {
  while (true) {
    const uint64_t seen = current_.load(std::memory_order_acquire);
    const Span found = first_in(span);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (current_.load(std::memory_order_relaxed) == seen) {
      return found;
    }
  }
}

bool Ranges::contains(Span span) const {
  const auto& [spans, count] = list();
  const size_t i = first_ending_after(span.begin);
  return i < count && spans[i].contains(span);
}

size_t Ranges::first_ending_after(uint64_t address) const {
  const auto& [spans, count] = list();
  size_t low = 0;
  size_t high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (spans[middle].end > address) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Ranges::replace(size_t first, size_t last, const Span* with, size_t with_count) {
  const List& before = list();
  const uint64_t next = current_.load(std::memory_order_relaxed) + 1;
  std::atomic_thread_fence(std::memory_order_release);  // pairs with first_in_unlocked()
  List& after = lists_[next % 2];
  memcpy(after.spans, before.spans, first * sizeof(Span));
  memcpy(after.spans + first, with, with_count * sizeof(Span));
  memcpy(after.spans + first + with_count, before.spans + last,
         (before.count - last) * sizeof(Span));
  after.count = first + with_count + before.count - last;
  current_.store(next, std::memory_order_release);
}

}  // namespace farpage::shim
