// PageCache: pages of images, shared by all guests of this host. Bounded; the page that was not
// used for the longest time makes room (CLOCK, one bit for each frame).
//
// A page that is not there is claimed by whoever asks first; others see that it is on its way, and
// ask again. So it comes over the wire once.
//
// Its key is where it is stored, so guests of an image, and of all images made of that one, share
// it.
//
// Neighbours are neighbours here, too, where they come in order: kBlockPages slots share a shard,
// and a shard gives its frames out in order. So many of them can be placed by one call of the
// kernel, straight from the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"

namespace farpage::snapshot {

// A page of a region that stores images. `store`: a number that stands for the region here.
struct PageKey {
  uint32_t store = 0;
  uint32_t slot = 0;
  bool operator==(const PageKey&) const = default;
};

// Threads: any. No call waits for anything but another call; nothing is allocated after create().
// Invariants:
//  1. a frame that is held is neither given to another page nor written by anybody but its claimer;
//  2. a key is in at most one frame;
//  3. who has claimed a frame calls fill() or abandon() for it.
class PageCache {
 public:
  enum class Found : uint8_t {
    kReady,    // `frame` has the page, and is held
    kClaimed,  // `frame` is held and to be filled by the caller
    kComing,   // somebody else has claimed it
    kNoRoom,   // every frame is held
  };
  // A frame of the cache; only what find() gave.
  using Frame = uint32_t;
  struct Answer {
    Found found = Found::kNoRoom;
    Frame frame = 0;
  };
  struct Counts {
    uint64_t pages = 0;
    uint64_t evicted = 0;
  };

  static constexpr uint64_t kMinBytes = uint64_t{4} << 20;

  static Result<std::unique_ptr<PageCache>> create(uint64_t bytes);

  Answer find(PageKey key);
  // The same, but claims nothing: kNoRoom means that it is not there.
  Answer look(PageKey key);
  std::span<std::byte> bytes_of(Frame frame) const;
  // The claimed frame has its page now. It stays held.
  void fill(Frame frame);
  // It will not come; the frame is free, and not held.
  void abandon(Frame frame);
  void release(Frame frame);

  uint64_t frames() const { return frames_; }
  Counts counts() const;

 private:
  enum class State : uint8_t { kFree, kComing, kReady };
  struct Meta {
    PageKey key;
    uint32_t holders = 0;
    State state = State::kFree;
    bool used = false;  // since the hand passed
  };
  // A part of the frames with an index of its own: linear probing, entries are frame + 1.
  struct Shard {
    mutable Mutex mutex;
    std::vector<uint32_t> index FARPAGE_GUARDED_BY(mutex);
    uint32_t first = 0;
    uint32_t count = 0;
    uint32_t hand FARPAGE_GUARDED_BY(mutex) = 0;
    uint64_t pages FARPAGE_GUARDED_BY(mutex) = 0;
    uint64_t evicted FARPAGE_GUARDED_BY(mutex) = 0;
  };
  static constexpr size_t kShards = 16;
  static constexpr uint32_t kBlockPages = 64;

  PageCache(Mapping memory, uint32_t frames);
  static uint64_t hash_of(PageKey key);
  // In turn: slots of an image are numbered without gaps, so all shards have as many of them.
  Shard& shard_of(PageKey key) {
    return shards_[(hash_of({key.store, 0}) + key.slot / kBlockPages) % kShards];
  }
  Shard& shard_of_frame(Frame frame);
  size_t place_of(const Shard& shard, PageKey key) const FARPAGE_REQUIRES(shard.mutex);
  void erase(Shard& shard, PageKey key) FARPAGE_REQUIRES(shard.mutex);
  bool take_victim(Shard& shard, Frame& frame) FARPAGE_REQUIRES(shard.mutex);
  Answer find_in(Shard& shard, PageKey key, bool claim) FARPAGE_REQUIRES(shard.mutex);

  Mapping memory_;
  const uint32_t frames_;
  std::vector<Meta> meta_;  // of a shard's frames: guarded by its mutex
  std::vector<Shard> shards_;
};

}  // namespace farpage::snapshot
