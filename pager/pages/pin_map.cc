#include "pager/pages/pin_map.h"

#include <bit>

namespace farpage::pager {
namespace {

// Calls `each` with every word that the run touches, and the bits of the run in it.
template <typename Each>
void for_each_word(uffd::PageRun run, Each each) {
  const uint64_t end = run.first.value + run.pages;
  for (uint64_t page = run.first.value; page < end;) {
    const uint64_t from = page % 64;
    const uint64_t count = end - page < 64 - from ? end - page : 64 - from;
    const uint64_t bits = count == 64 ? ~uint64_t{0} : ((uint64_t{1} << count) - 1) << from;
    each(page / 64, bits);
    page += count;
  }
}

}  // namespace

Result<PinMap> PinMap::create(uint64_t pages, uint64_t limit_pages) {
  FARPAGE_TRY(memory, Mapping::anonymous(memory_bytes(pages)));
  return create(limit_pages, std::move(memory), {});
}

PinMap PinMap::create(uint64_t limit_pages, Mapping memory,
                      std::span<const StateStore::Part> parts) {
  PinMap map(std::move(memory), limit_pages);
  uint64_t pinned = 0;
  for (const StateStore::Part& part : parts)
    for (size_t at = part.offset; at < part.offset + part.bytes; at += sizeof(uint64_t))
      pinned += static_cast<uint64_t>(std::popcount(map.words()[at / sizeof(uint64_t)].load()));
  map.pinned_.store(pinned, std::memory_order_relaxed);
  return map;
}

PinMap::PinMap(PinMap&& other) noexcept
    : memory_(std::move(other.memory_)), limit_pages_(other.limit_pages_) {
  pinned_.store(other.pinned_pages(), std::memory_order_relaxed);
}

bool PinMap::pin(uffd::PageRun run) {
  const MutexLock lock(mutex_);
  if (run.pages > limit_pages_ + pinned_pages()) return false;  // before the words are read
  uint64_t added = 0;
  for_each_word(run, [&](uint64_t index, uint64_t bits) {
    added += static_cast<uint64_t>(
        std::popcount(bits & ~words()[index].load(std::memory_order_relaxed)));
  });
  if (pinned_pages() + added > limit_pages_) return false;
  for_each_word(run, [this](uint64_t index, uint64_t bits) {
    words()[index].fetch_or(bits, std::memory_order_release);
  });
  pinned_.fetch_add(added, std::memory_order_relaxed);
  return true;
}

void PinMap::unpin(uffd::PageRun run) {
  const MutexLock lock(mutex_);
  uint64_t removed = 0;
  for_each_word(run, [&](uint64_t index, uint64_t bits) {
    // Does not write untouched words: the run may be the whole window.
    if (pinned_pages() == removed || words()[index].load(std::memory_order_relaxed) == 0) return;
    const uint64_t before = words()[index].fetch_and(~bits, std::memory_order_release);
    removed += static_cast<uint64_t>(std::popcount(before & bits));
  });
  pinned_.fetch_sub(removed, std::memory_order_relaxed);
}

bool PinMap::set_limit(uint64_t limit_pages) {
  const MutexLock lock(mutex_);
  if (pinned_pages() > limit_pages) return false;
  limit_pages_ = limit_pages;
  return true;
}

}  // namespace farpage::pager
