#include "node/slab_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/check.h"
#include "base/log.h"
#include "base/size.h"
#include "coordinator/api.h"
#include "node/memory_limits.h"
#include "rdma/file/nameless_file.h"

namespace farpage::node {
namespace {

constexpr int64_t kSecondsUntil2020 = 1'577'836'800;
constexpr Milliseconds kScrubRetry{200};

uint32_t seconds_since_2020() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(std::chrono::duration_cast<Seconds>(now).count() -
                               kSecondsUntil2020);
}

Status check_options(const SlabPoolOptions& options) {
  if (!std::has_single_bit(options.slab_bytes) || options.slab_bytes < coordinator::kMinSlabBytes ||
      options.slab_bytes > coordinator::kMaxSlabBytes)
    return fail(ErrorCode::kInvalid, fmt::format("slab: {} is not a power of two from {} to {}",
                                                 format_size(options.slab_bytes),
                                                 format_size(coordinator::kMinSlabBytes),
                                                 format_size(coordinator::kMaxSlabBytes)));
  const std::string field = options.folder.empty() ? "lend" : options.folder;
  if (options.lend_bytes < options.slab_bytes)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("{}: {} is less than one slab of {}; lend more or choose a smaller slab", field,
                    format_size(options.lend_bytes), format_size(options.slab_bytes)));
  if (options.lend_bytes / options.slab_bytes > kMaxSlabs)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("{}: {} is more than {} slabs of {}; choose a larger slab", field,
                    format_size(options.lend_bytes), kMaxSlabs, format_size(options.slab_bytes)));
  return {};
}

Status check_room(const SlabMemoryOptions& options, uint64_t bytes) {
  return options.folder.empty() ? check_available(bytes, options.hugepages)
                                : rdma::file::check_free(options.folder, bytes);
}

}  // namespace

std::string_view to_string(SlabState state) {
  switch (state) {
    case SlabState::kFree:
      return "free";
    case SlabState::kLeased:
      return "leased";
    case SlabState::kScrubbing:
      return "scrubbing";
    case SlabState::kWithdrawn:
      return "withdrawn";
  }
  return "unknown";
}

Result<std::unique_ptr<SlabPool>> SlabPool::create(const SlabPoolOptions& options) {
  FARPAGE_TRY_VOID(check_options(options));
  const uint64_t count = options.lend_bytes / options.slab_bytes;
  const uint64_t total_bytes = count * options.slab_bytes;
  if (options.pinned) FARPAGE_TRY_VOID(check_memlock(total_bytes));
  const SlabMemoryOptions memory{options.slab_bytes, options.hugepages, options.lazy,
                                 options.numa_node, options.folder};
  FARPAGE_TRY_VOID(check_room(memory, total_bytes));
  const Generation base{options.generation_base != 0 ? options.generation_base
                                                     : seconds_since_2020()};
  std::deque<Slab> slabs;
  for (uint64_t i = 0; i < count; ++i) {
    Result<OwnedSlabMemory> made = OwnedSlabMemory::create(memory);
    if (!made) return fail_with(fmt::format("slab {} of {}", i, count), made.error());
    slabs.push_back(Slab{std::move(*made), SlabState::kFree, base});
    if (options.progress && !options.progress((i + 1) * options.slab_bytes, total_bytes))
      return fail(ErrorCode::kUnavailable, "stopped before all memory was ready");
  }
  return std::unique_ptr<SlabPool>(new SlabPool(memory, options.pinned, std::move(slabs)));
}

SlabPool::SlabPool(SlabMemoryOptions options, bool pinned, std::deque<Slab> slabs)
    : memory_options_(std::move(options)),
      pinned_(pinned),
      slabs_(std::move(slabs)),
      last_generation_(slabs_.front().generation),
      scrubber_([this] {
        ::pthread_setname_np(::pthread_self(), "slab-scrubber");
        scrub_until_stopped();
      }) {}

SlabPool::~SlabPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  scrubber_.join();
}

Status SlabPool::check_slab(uint32_t slab) const {
  if (slab < slabs_.size()) return {};
  return fail(ErrorCode::kNotFound,
              fmt::format("node_slab {}: this node has slabs 0 to {}", slab, slabs_.size() - 1));
}

SlabPool::Extent SlabPool::extent() const {
  const MutexLock lock(mutex_);
  Extent extent;
  extent.numbers = static_cast<uint32_t>(slabs_.size());
  for (uint32_t i = 0; i < extent.numbers; ++i)
    if (slabs_[i].state == SlabState::kWithdrawn) extent.withdrawn.push_back(i);
  return extent;
}

std::vector<uint32_t> SlabPool::missing(std::span<const uint32_t> slabs) const {
  const MutexLock lock(mutex_);
  std::vector<uint32_t> missing;
  for (const uint32_t slab : slabs)
    if (slab >= slabs_.size() || slabs_[slab].state == SlabState::kWithdrawn)
      missing.push_back(slab);
  return missing;
}

Status SlabPool::add(std::span<const uint32_t> slabs, uint64_t in_all) {
  for (const uint32_t slab : slabs)
    if (slab >= kMaxSlabs)
      return fail(ErrorCode::kInvalid, fmt::format("a node has at most {} slabs", kMaxSlabs));
  const MutexLock changing(changing_);
  const std::vector<uint32_t> wanted = missing(slabs);
  if (wanted.empty()) return {};
  const uint64_t coming = std::max<uint64_t>(wanted.size(), in_all) * slab_bytes();
  if (capacity_bytes() + coming > kMaxSlabs * slab_bytes())
    return fail(ErrorCode::kExhausted, fmt::format("a node has at most {} slabs of {}", kMaxSlabs,
                                                   format_size(slab_bytes())));
  if (pinned_) FARPAGE_TRY_VOID(check_memlock(capacity_bytes() + coming));
  FARPAGE_TRY_VOID(check_room(memory_options_, coming));
  std::vector<OwnedSlabMemory> made;  // without the lock: the others are lent meanwhile
  for (size_t i = 0; i < wanted.size(); ++i) {
    FARPAGE_TRY(memory, OwnedSlabMemory::create(memory_options_));
    made.push_back(std::move(memory));
  }
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < wanted.size(); ++i) {
    while (slabs_.size() <= wanted[i])
      slabs_.push_back(Slab{OwnedSlabMemory(), SlabState::kWithdrawn, last_generation_});
    Slab& slab = slabs_[wanted[i]];
    slab.memory = std::move(made[i]);
    slab.state = SlabState::kFree;
  }
  return {};
}

Status SlabPool::withdraw(std::span<const uint32_t> slabs, Nanoseconds wait) {
  std::vector<OwnedSlabMemory> given_up;  // freed after the lock
  const MutexLock changing(changing_);
  MutexLock lock(mutex_);
  std::vector<uint32_t> known;
  for (const uint32_t slab : slabs) {
    if (slab >= kMaxSlabs)
      return fail(ErrorCode::kInvalid, fmt::format("a node has at most {} slabs", kMaxSlabs));
    if (slab < slabs_.size()) known.push_back(slab);
  }
  const auto find = [&](SlabState state) FARPAGE_REQUIRES(mutex_) {
    return std::ranges::find_if(
        known, [&](uint32_t slab) FARPAGE_REQUIRES(mutex_) { return slabs_[slab].state == state; });
  };
  scrubbed_.wait_for(lock, wait, [&]() FARPAGE_REQUIRES(mutex_) {
    return find(SlabState::kScrubbing) == known.end();
  });
  if (const auto leased = find(SlabState::kLeased); leased != known.end())
    return fail(ErrorCode::kConflict, fmt::format("node_slab {} is leased", *leased));
  if (const auto busy = find(SlabState::kScrubbing); busy != known.end())
    return fail(ErrorCode::kUnavailable,
                fmt::format("node_slab {} is still being scrubbed; try again", *busy));
  for (const uint32_t slab : known) {
    given_up.push_back(std::move(slabs_[slab].memory));
    slabs_[slab].state = SlabState::kWithdrawn;
  }
  return {};
}

Result<SlabPool::Lent> SlabPool::lend(uint32_t slab, Nanoseconds wait) {
  MutexLock lock(mutex_);
  FARPAGE_TRY_VOID(check_slab(slab));
  Slab& wanted = slabs_[slab];
  if (wanted.state == SlabState::kScrubbing) {
    const auto queued = std::find(queue_.begin(), queue_.end(), slab);
    if (queued != queue_.end()) {
      queue_.erase(queued);
      queue_.push_front(slab);
    }
    scrubbed_.wait_for(lock, wait, [&] { return wanted.state != SlabState::kScrubbing; });
  }
  switch (wanted.state) {
    case SlabState::kScrubbing:
      return fail(
          ErrorCode::kUnavailable,
          fmt::format("node_slab {} is still being scrubbed; retry, or take another slab", slab));
    case SlabState::kLeased:
      return fail(ErrorCode::kConflict, fmt::format("node_slab {} is leased", slab));
    case SlabState::kWithdrawn:
      return fail(ErrorCode::kNotFound, fmt::format("node_slab {} is not lent any more", slab));
    case SlabState::kFree:
      break;
  }
  wanted.state = SlabState::kLeased;
  wanted.generation = Generation{++last_generation_.value};
  return Lent{wanted.memory.view(), wanted.generation};
}

Status SlabPool::take_back(uint32_t slab, Generation generation) {
  {
    const MutexLock lock(mutex_);
    FARPAGE_TRY_VOID(check_slab(slab));
    Slab& lent = slabs_[slab];
    if (lent.generation != generation)
      return fail(ErrorCode::kConflict,
                  fmt::format("generation {} of node_slab {} is not its current one",
                              generation.value, slab));
    if (lent.state != SlabState::kLeased) return {};
    lent.state = SlabState::kScrubbing;
    queue_.push_back(slab);
  }
  work_.notify_one();
  return {};
}

Result<SlabPool::SlabStatus> SlabPool::status(uint32_t slab) const {
  const MutexLock lock(mutex_);
  FARPAGE_TRY_VOID(check_slab(slab));
  return SlabStatus{slabs_[slab].state, slabs_[slab].generation};
}

SlabCounts SlabPool::counts() const {
  const MutexLock lock(mutex_);
  SlabCounts counts;
  for (const Slab& slab : slabs_) {
    if (slab.state == SlabState::kFree) ++counts.free;
    if (slab.state == SlabState::kLeased) ++counts.leased;
    if (slab.state == SlabState::kScrubbing) ++counts.scrubbing;
  }
  return counts;
}

Result<OwnedSlabMemory> SlabPool::next_life(OwnedSlabMemory former) {
  FARPAGE_TRY_VOID(former.give_up_pages());
  former = OwnedSlabMemory();  // unmapped and closed before the new pages are taken (invariant 4)
  return OwnedSlabMemory::create(memory_options_);
}

void SlabPool::scrub_until_stopped() {
  bool told = false;  // one log line per run of failures
  MutexLock lock(mutex_);
  while (true) {
    work_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const uint32_t index = queue_.front();
    queue_.pop_front();
    Slab& slab = slabs_[index];
    FARPAGE_CHECK(slab.state == SlabState::kScrubbing, "slab %u is %d", index,
                  static_cast<int>(slab.state));
    OwnedSlabMemory former = std::move(slab.memory);
    lock.unlock();
    Result<OwnedSlabMemory> fresh = next_life(std::move(former));
    if (!fresh && !told)
      log::error("node slab_not_scrubbed slab={} retry_ms={} reason=\"{}\"", index,
                 kScrubRetry.count(), fresh.error().message());
    told = !fresh;
    lock.lock();
    if (fresh) {
      slab.memory = std::move(*fresh);
      slab.state = SlabState::kFree;
      scrubbed_.notify_all();
      continue;
    }
    queue_.push_back(index);
    work_.wait_for(lock, kScrubRetry, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; });
  }
}

}  // namespace farpage::node
