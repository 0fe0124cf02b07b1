#include "pager/preload/ranges.h"

#include <string.h>
#include <sys/mman.h>

namespace farpage::preload {

long Ranges::open() {
  const long address =
      system_call(SYS_mmap, nullptr, kMaxSpans * sizeof(Span), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (is_error(address)) {
    return address;
  }
  spans_ = reinterpret_cast<Span*>(address);
  return 0;
}

Span Ranges::find(uint64_t bytes, uint64_t alignment) const {
  for (size_t i = 0; i < count_; ++i) {
    const uint64_t begin = (spans_[i].begin + alignment - 1) & ~(alignment - 1);
    if (begin < spans_[i].end && spans_[i].end - begin >= bytes) {
      return {begin, begin + bytes};
    }
  }
  return {};
}

bool Ranges::add(Span span) {
  if (span.empty()) {
    return true;
  }
  // Everything from the first span that touches it to the last one becomes one.
  size_t first = first_ending_after(span.begin);
  if (first > 0 && spans_[first - 1].end == span.begin) {
    --first;
  }
  size_t last = first;
  while (last < count_ && spans_[last].begin <= span.end) {
    span.begin = spans_[last].begin < span.begin ? spans_[last].begin : span.begin;
    span.end = spans_[last].end > span.end ? spans_[last].end : span.end;
    ++last;
  }
  if (first == last && count_ == kMaxSpans) {
    return false;
  }
  replace(first, last, &span, 1);
  return true;
}

bool Ranges::remove(Span span) {
  if (span.empty()) {
    return true;
  }
  const size_t first = first_ending_after(span.begin);
  size_t last = first;
  while (last < count_ && spans_[last].begin < span.end) {
    ++last;
  }
  if (first == last) {
    return true;
  }
  Span rest[2];
  size_t rest_count = 0;
  if (spans_[first].begin < span.begin) {
    rest[rest_count++] = {spans_[first].begin, span.begin};
  }
  if (spans_[last - 1].end > span.end) {
    rest[rest_count++] = {span.end, spans_[last - 1].end};
  }
  if (count_ - (last - first) + rest_count > kMaxSpans) {
    return false;
  }
  replace(first, last, rest, rest_count);
  return true;
}

bool Ranges::intersects(Span span) const {
  const size_t i = first_ending_after(span.begin);
  return i < count_ && spans_[i].begin < span.end;
}

bool Ranges::contains(Span span) const {
  const size_t i = first_ending_after(span.begin);
  return i < count_ && spans_[i].contains(span);
}

size_t Ranges::first_ending_after(uint64_t address) const {
  size_t low = 0;
  size_t high = count_;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (spans_[middle].end > address) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Ranges::replace(size_t first, size_t last, const Span* with, size_t with_count) {
  memmove(spans_ + first + with_count, spans_ + last, (count_ - last) * sizeof(Span));
  for (size_t i = 0; i < with_count; ++i) {
    spans_[first + i] = with[i];
  }
  count_ = count_ - (last - first) + with_count;
}

}  // namespace farpage::preload
