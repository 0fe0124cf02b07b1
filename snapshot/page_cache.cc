#include "snapshot/page_cache.h"

#include <sys/mman.h>

#include <bit>
#include <utility>

#include "base/check.h"
#include "base/strong.h"

namespace farpage::snapshot {

Result<std::unique_ptr<PageCache>> PageCache::create(uint64_t bytes) {
  constexpr uint64_t kMaxFrames = uint64_t{1} << 31;
  if (bytes < kMinBytes || bytes >> kPageShift > kMaxFrames)
    return fail(ErrorCode::kInvalid, "the cache must have from 4M to 8T");
  const auto frames = static_cast<uint32_t>((bytes >> kPageShift) / kShards * kShards);
  FARPAGE_TRY(memory, Mapping::anonymous(uint64_t{frames} << kPageShift));
  // Fewer faults of this process while it fills; a wish.
  (void)::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  return std::unique_ptr<PageCache>(new PageCache(std::move(memory), frames));
}

PageCache::PageCache(Mapping memory, uint32_t frames)
    : memory_(std::move(memory)), frames_(frames), meta_(frames), shards_(kShards) {
  const auto each = static_cast<uint32_t>(frames / kShards);
  for (uint32_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    const MutexLock lock(shard.mutex);
    shard.first = i * each;
    shard.count = each;
    shard.index.resize(std::bit_ceil(uint64_t{each} * 2));
  }
}

uint64_t PageCache::hash_of(PageKey key) {
  const uint64_t both = (uint64_t{key.store} << 32) | key.slot;
  const uint64_t mixed = (both ^ (both >> 31)) * 0x9E3779B97F4A7C15U;
  return mixed ^ (mixed >> 29);
}

PageCache::Shard& PageCache::shard_of_frame(Frame frame) {
  return shards_[frame / (frames_ / kShards)];
}

std::span<std::byte> PageCache::bytes_of(Frame frame) const {
  return memory_.bytes().subspan(size_t{frame} << kPageShift, kPageBytes);
}

// Where the key is, or the empty place where it would be.
size_t PageCache::place_of(const Shard& shard, PageKey key) const {
  const size_t mask = shard.index.size() - 1;
  size_t place = hash_of(key) & mask;
  while (shard.index[place] != 0 && !(meta_[shard.index[place] - 1].key == key))
    place = (place + 1) & mask;
  return place;
}

// Closes the gap, so that no search ends too early (Knuth, 6.4, algorithm R).
void PageCache::erase(Shard& shard, PageKey key) {
  const size_t mask = shard.index.size() - 1;
  size_t gap = place_of(shard, key);
  FARPAGE_CHECK(shard.index[gap] != 0, "slot %u is not in the cache", key.slot);
  shard.index[gap] = 0;
  for (size_t next = (gap + 1) & mask; shard.index[next] != 0; next = (next + 1) & mask) {
    const size_t home = hash_of(meta_[shard.index[next] - 1].key) & mask;
    // Still found from its home, if the gap is not between the two.
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    shard.index[gap] = shard.index[next];
    shard.index[next] = 0;
    gap = next;
  }
}

bool PageCache::take_victim(Shard& shard, Frame& frame) {
  // Two rounds: the first one may only take the marks away.
  for (uint32_t step = 0; step < 2 * shard.count; ++step) {
    const Frame candidate = shard.first + shard.hand;
    shard.hand = shard.hand + 1 == shard.count ? 0 : shard.hand + 1;
    Meta& meta = meta_[candidate];
    if (meta.holders > 0) continue;
    if (meta.state == State::kFree) {
      frame = candidate;
      return true;
    }
    if (std::exchange(meta.used, false)) continue;
    erase(shard, meta.key);
    ++shard.evicted;
    --shard.pages;
    meta.state = State::kFree;
    frame = candidate;
    return true;
  }
  return false;
}

PageCache::Answer PageCache::find_in(Shard& shard, PageKey key, bool claim) {
  if (const uint32_t entry = shard.index[place_of(shard, key)]; entry != 0) {
    Meta& meta = meta_[entry - 1];
    if (meta.state == State::kComing) return {Found::kComing, 0};
    ++meta.holders;
    meta.used = true;
    return {Found::kReady, entry - 1};
  }
  Frame frame = 0;
  if (!claim || !take_victim(shard, frame)) return {Found::kNoRoom, 0};
  // Not marked: a page that is never used again goes before one that is.
  meta_[frame] = Meta{key, 1, State::kComing, false};
  // The eviction may have moved entries.
  shard.index[place_of(shard, key)] = frame + 1;
  ++shard.pages;
  return {Found::kClaimed, frame};
}

PageCache::Answer PageCache::find(PageKey key) {
  Shard& shard = shard_of(key);
  const MutexLock lock(shard.mutex);
  return find_in(shard, key, true);
}

PageCache::Answer PageCache::look(PageKey key) {
  Shard& shard = shard_of(key);
  const MutexLock lock(shard.mutex);
  return find_in(shard, key, false);
}

void PageCache::fill(Frame frame) {
  Shard& shard = shard_of_frame(frame);
  const MutexLock lock(shard.mutex);
  FARPAGE_CHECK(meta_[frame].state == State::kComing, "frame %u was not claimed", frame);
  meta_[frame].state = State::kReady;
}

void PageCache::abandon(Frame frame) {
  Shard& shard = shard_of_frame(frame);
  const MutexLock lock(shard.mutex);
  Meta& meta = meta_[frame];
  FARPAGE_CHECK(meta.state == State::kComing && meta.holders == 1, "frame %u was not claimed",
                frame);
  erase(shard, meta.key);
  --shard.pages;
  meta = Meta{};
}

void PageCache::release(Frame frame) {
  Shard& shard = shard_of_frame(frame);
  const MutexLock lock(shard.mutex);
  FARPAGE_CHECK(meta_[frame].holders > 0, "frame %u is not held", frame);
  --meta_[frame].holders;
}

PageCache::Counts PageCache::counts() const {
  Counts counts;
  for (const Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    counts.pages += shard.pages;
    counts.evicted += shard.evicted;
  }
  return counts;
}

}  // namespace farpage::snapshot
