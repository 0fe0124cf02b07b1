#include "pager/fault/trend.h"

#include <algorithm>
#include <cstdlib>

namespace farpage::pager {

void TrendDetector::Deltas::add(int64_t delta) {
  // What does not fit is no stride; it only must not equal one.
  values[next] = static_cast<int32_t>(std::clamp<int64_t>(delta, INT32_MIN, INT32_MAX));
  next = static_cast<uint8_t>((next + 1) % kHistory);
  filled = static_cast<uint8_t>(std::min<size_t>(filled + size_t{1}, kHistory));
}

int64_t TrendDetector::Deltas::majority() const {
  // Boyer-Moore: one candidate, then count it. Nothing below four observations.
  if (filled < 4) return 0;
  int32_t candidate = 0;
  size_t votes = 0;
  for (size_t i = 0; i < filled; ++i) {
    if (votes == 0) candidate = values[i];
    votes += values[i] == candidate ? 1 : static_cast<size_t>(-1);
  }
  const auto count =
      static_cast<size_t>(std::count(values.begin(), values.begin() + filled, candidate));
  return count * 2 > filled ? candidate : 0;
}

std::optional<PrefetchPlan> TrendDetector::observe(uint32_t thread, PageIndex page,
                                                   uint32_t max_depth, bool sequential) {
  if (max_depth == 0) return std::nullopt;
  Walker* walker = enter(thread);
  if (walker == nullptr) return std::nullopt;
  const auto plan = observe(*walker, static_cast<int64_t>(page.value), max_depth, sequential);
  walker->busy.clear(std::memory_order_release);
  return plan;
}

TrendDetector::Walker* TrendDetector::enter(uint32_t thread) {
  Walker& walker = walkers_[thread % kThreads];
  if (walker.busy.test_and_set(std::memory_order_acquire)) return nullptr;
  if (!walker.known || walker.thread != thread) {
    walker.thread = thread;
    walker.known = true;
    walker.last = kNone;
    walker.deltas = {};
    walker.streams.fill({});
  }
  return &walker;
}

void TrendDetector::came_with(uint32_t thread, PageIndex page, const Cluster& cluster) {
  Walker* walker = enter(thread);
  if (walker == nullptr) return;
  uint8_t below = 0;
  uint8_t above = 0;
  while (page.value > below && cluster.has(page.value - below - 1)) ++below;
  while (cluster.has(page.value + above + 1)) ++above;
  for (Stream& stream : walker->streams) {
    if (stream.last != static_cast<int64_t>(page.value)) continue;
    stream.below = below;
    stream.above = above;
  }
  walker->busy.clear(std::memory_order_release);
}

std::optional<PrefetchPlan> TrendDetector::observe(Walker& walker, int64_t at, uint32_t max_depth,
                                                   bool sequential) {
  Stream& stream = follow(walker, at);
  stream.used = ++walker.clock;
  stream.last = at;
  stream.below = stream.above = 0;
  if (sequential && stream.stride != 1) {
    stream.marker = stream.next_marker = kNone;
    stream.stride = 1;
  }
  if (stream.stride == 0) return std::nullopt;
  const uint32_t depth =
      std::abs(stream.stride) == 1 ? max_depth : std::min(max_depth, kScatteredDepth);
  return next_batch(stream, at, sequential ? depth : std::min(kFirstDepth, depth), depth);
}

TrendDetector::Stream& TrendDetector::follow(Walker& walker, int64_t at) {
  const int64_t step = walker.last == kNone ? 0 : at - walker.last;
  walker.last = at;
  walker.deltas.add(step);
  if (Stream* stream = expecting(walker, at)) {
    // Pages fetched ahead lie between two faults of a stream: together they count as one step.
    stream->deltas.add(stream->stride);
    return *stream;
  }
  if (Stream* stream = nearest(walker, at)) {
    const int64_t last = stream->last;
    const int64_t delta = at - (at > last + stream->above   ? last + stream->above
                                : at < last - stream->below ? last - stream->below
                                                            : last);
    stream->deltas.add(delta);
    // A stream that is known goes on over pages that were resident.
    const int64_t most = stream->deltas.majority();
    const bool goes_on = most == delta || (most == stream->stride && delta * most > 0);
    const int64_t stride = goes_on ? most : 0;
    if (stride != stream->stride) stream->marker = stream->next_marker = kNone;
    stream->stride = stride;
    return *stream;
  }
  Stream& stream = begin(walker, at);
  if (step != 0 && walker.deltas.majority() == step && std::abs(step) <= kMaxStride) {
    stream.stride = step;
    for (size_t i = 0; i < kHistory; ++i) stream.deltas.add(step);
  }
  return stream;
}

// By a marker; else as the next page of a stride, or as one of the batches of a sequential walk
// that was not fetched.
TrendDetector::Stream* TrendDetector::expecting(Walker& walker, int64_t at) {
  Stream* next = nullptr;
  for (Stream& stream : walker.streams) {
    if (stream.last == kNone || stream.stride == 0) continue;
    if (at == stream.marker || at == stream.next_marker) return &stream;
    const int64_t ahead = (at - stream.last) * stream.stride;
    const int64_t two_batches = int64_t{2} * stream.depth;
    const bool in_batches = std::abs(stream.stride) == 1 && ahead > 0 && ahead <= two_batches;
    if (at == stream.last + stream.stride || in_batches) next = &stream;
  }
  return next;
}

TrendDetector::Stream* TrendDetector::nearest(Walker& walker, int64_t at) {
  Stream* best = nullptr;
  int64_t best_distance = kNear + 1;
  for (Stream& stream : walker.streams) {
    if (stream.last == kNone) continue;
    const int64_t distance = std::abs(at - stream.last);
    if (distance == 0 || distance >= best_distance) continue;
    best = &stream;
    best_distance = distance;
  }
  return best;
}

// In place of the stream that was not used for the longest time. One whose stride is known faults
// once for each batch, and stays longer.
TrendDetector::Stream& TrendDetector::begin(Walker& walker, int64_t at) {
  const auto age = [&](const Stream& stream) {
    if (stream.last == kNone) return UINT32_MAX;
    const uint32_t faults = walker.clock - stream.used;
    return stream.stride == 0 ? faults : faults / kKeptLonger;
  };
  Stream& oldest = *std::ranges::max_element(walker.streams, {}, age);
  oldest = {};
  oldest.last = at;
  return oldest;
}

PrefetchPlan TrendDetector::next_batch(Stream& stream, int64_t at, uint32_t first_depth,
                                       uint32_t max_depth) {
  const int64_t stride = stream.stride;
  const auto behind = [&](int64_t page, uint32_t depth) {
    return page + stride * (static_cast<int64_t>(depth) + 1);
  };
  const auto plan_from = [&](int64_t page, uint32_t pages) {
    return PrefetchPlan{PageIndex{static_cast<uint64_t>(page + stride)}, stride, pages};
  };
  if (stream.next_marker == at) {  // the page at the previous marker was resident
    stream.marker = at;
    stream.next_marker = kNone;
  }
  if (stream.marker != at) {
    // A stream begins, or fewer pages were fetched than requested.
    const bool begins = stream.marker == kNone;
    stream.depth = static_cast<uint16_t>(
        begins ? first_depth : std::clamp<uint32_t>(stream.depth / 2, first_depth, max_depth));
    stream.marker = behind(at, stream.depth);
    stream.next_marker = kNone;
    return plan_from(at, stream.depth);
  }
  stream.depth = static_cast<uint16_t>(std::min<uint32_t>(stream.depth * 2U, max_depth));
  if (stream.next_marker == kNone) {  // two batches: the current one and the next one
    stream.marker = behind(at, stream.depth);
    stream.next_marker = behind(stream.marker, stream.depth);
    PrefetchPlan plan = plan_from(at, 2U * stream.depth + 1);
    plan.gap = stream.depth;
    return plan;
  }
  stream.marker = stream.next_marker;
  stream.next_marker = behind(stream.marker, stream.depth);
  return plan_from(stream.marker, stream.depth);
}

}  // namespace farpage::pager
