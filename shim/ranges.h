// Ranges: a set of pages of the window (the free ones, the locked ones). A sorted array of
// disjoint, non-adjacent spans in memory of its own, so that the shim never needs an allocator.
//
// Threads: none but for first_in_unlocked(); the caller holds the shim's lock.
// Invariants: 1. spans are sorted, not empty, disjoint, and do not touch. 2. All bounds are page
// aligned. 3. The spans are consistent at every instant: a change is prepared in a second array,
// and one store publishes it. A child forked meanwhile sees the state before or after it.
#pragma once

#include <stddef.h>

#include <atomic>

#include "shim/syscalls.h"

namespace farpage::shim {

class Ranges {
 public:
  // More than the kernel's default limit of mappings (vm.max_map_count, 65530): each hole in the
  // window is a mapping of its own.
  static constexpr size_t kMaxSpans = size_t{1} << 18;

  constexpr Ranges() = default;
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

  // Reserves the array's memory, for at most `max_spans`. 0 or a negative errno.
  long open(size_t max_spans = kMaxSpans);

  // The lowest span of `bytes` in the set at a multiple of `alignment` (a power of two); empty when
  // there is none.
  Span find(uint64_t bytes, uint64_t alignment) const;

  // Pages already in the set stay in it. false: the array is full, and nothing changed.
  bool add(Span span);
  // Pages not in the set are ignored. false: the array is full, and nothing changed.
  bool remove(Span span);

  // The lowest part of the set in the span; empty: none.
  Span first_in(Span span) const;
  // The same without the lock, at any time: as before or after a change that is under way.
  Span first_in_unlocked(Span span) const;
  bool intersects(Span span) const { return !first_in(span).empty(); }
  bool contains(Span span) const;

  size_t size() const { return list().count; }
  const Span& operator[](size_t index) const { return list().spans[index]; }

  // Calls each(Span) for the set's parts in `span`, ascending. `each` must not change the set.
  template <typename Each>
  void for_each_in(Span span, Each each) const {
    const auto& [spans, count] = list();
    for (size_t i = first_ending_after(span.begin); i < count && spans[i].begin < span.end; ++i) {
      each(overlap(spans[i], span));
    }
  }
  // The same for the gaps between them.
  template <typename Each>
  void for_each_gap_in(Span span, Each each) const {
    uint64_t from = span.begin;
    for_each_in(span, [&](Span present) {
      if (from < present.begin) {
        each(Span{from, present.begin});
      }
      from = present.end;
    });
    if (from < span.end) {
      each(Span{from, span.end});
    }
  }

 private:
  struct List {
    Span* spans = nullptr;
    size_t count = 0;
  };
  const List& list() const { return lists_[current_.load(std::memory_order_relaxed) % 2]; }

  // The first span that ends after `address`; size() when there is none.
  size_t first_ending_after(uint64_t address) const;
  void replace(size_t first, size_t last, const Span* with, size_t with_count);

  size_t max_spans_ = 0;
  List lists_[2];
  std::atomic<uint64_t> current_{0};  // counts the changes
};

}  // namespace farpage::shim
