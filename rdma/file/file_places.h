// FilePlaces: which places of the file are in use, under which generation, and by how many
// operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "base/mutex.h"
#include "rdma/slab_file.h"
#include "rdma/transport.h"

namespace farpage::rdma::file {

// Threads: any; enter() and leave() take no lock.
// Invariant: a place is given to another slab when no operation of the former one is between
// enter() and leave(). An operation announces itself and then looks at the generation; giving back
// ends the generation, and take() then looks at the operations. So one of them sees the other.
class FilePlaces {
 public:
  FilePlaces(uint64_t slab_bytes, uint32_t places, const RemoteKey& key);

  uint64_t slab_bytes() const { return slab_bytes_; }
  uint32_t places() const { return count_; }
  uint32_t free_places() const;
  const RemoteKey& key() const { return key_; }

  // `prepare`: called with the offset of a place before its first use in this process, without a
  // lock; false: the place cannot be used, and stays free.
  std::optional<SlabFile::Place> take(const std::function<bool(uint64_t)>& prepare);
  bool take_again(RemoteAddress address, Generation generation);
  void give_back(RemoteAddress address, Generation generation);

  // The place of the operation, which is under way from now on. nullopt: refused, because its key,
  // its generation or its range is wrong.
  std::optional<uint32_t> enter(const Operation& operation);
  // It is still under the generation of the operation.
  bool is_under(uint32_t place, Generation generation) const {
    return state_[place].generation.load(std::memory_order_seq_cst) == generation.value;
  }
  void leave(uint32_t place) { state_[place].operations.fetch_sub(1, std::memory_order_seq_cst); }

 private:
  struct State {
    std::atomic<uint32_t> generation{0};  // 0: not in use
    std::atomic<uint32_t> operations{0};
    // Guarded by mutex_:
    uint32_t last = 0;  // generation that it had
    bool prepared = false;
  };
  std::optional<uint32_t> place_at(RemoteAddress address) const;

  const uint64_t slab_bytes_;
  const uint32_t count_;
  const RemoteKey key_;
  const std::unique_ptr<State[]> state_;
  mutable Mutex mutex_;
  std::set<uint32_t> free_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::file
