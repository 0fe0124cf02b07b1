#include "rdma/file/file_places.h"

namespace farpage::rdma::file {

FilePlaces::FilePlaces(uint64_t slab_bytes, uint32_t places, const RemoteKey& key)
    : slab_bytes_(slab_bytes),
      count_(places),
      key_(key),
      state_(std::make_unique<State[]>(places)) {
  const MutexLock lock(mutex_);
  for (uint32_t place = 0; place < places; ++place) free_.insert(free_.end(), place);
}

uint32_t FilePlaces::free_places() const {
  const MutexLock lock(mutex_);
  return static_cast<uint32_t>(free_.size());
}

// One that was prepared before, else the lowest.
std::optional<SlabFile::Place> FilePlaces::take(const std::function<bool(uint64_t)>& prepare) {
  MutexLock lock(mutex_);
  std::optional<uint32_t> chosen;
  for (const uint32_t place : free_) {
    const State& state = state_[place];
    if (state.operations.load(std::memory_order_seq_cst) != 0) continue;
    if (!chosen || state.prepared) chosen = place;
    if (state.prepared) break;
  }
  if (!chosen) return std::nullopt;
  free_.erase(*chosen);
  State& state = state_[*chosen];
  if (!state.prepared) {
    lock.unlock();
    const bool prepared = prepare(*chosen * slab_bytes_);
    lock.lock();
    state.prepared = prepared;
    if (!prepared) {
      free_.insert(*chosen);
      return std::nullopt;
    }
  }
  if (++state.last == 0) ++state.last;
  state.generation.store(state.last, std::memory_order_seq_cst);
  return SlabFile::Place{RemoteAddress{*chosen * slab_bytes_}, key_, Generation{state.last}};
}

bool FilePlaces::take_again(RemoteAddress address, Generation generation) {
  const std::optional<uint32_t> place = place_at(address);
  if (!place || generation.value == 0) return false;
  const MutexLock lock(mutex_);
  if (free_.erase(*place) == 0) return false;
  state_[*place].last = generation.value;
  state_[*place].prepared = true;
  state_[*place].generation.store(generation.value, std::memory_order_seq_cst);
  return true;
}

void FilePlaces::give_back(RemoteAddress address, Generation generation) {
  const std::optional<uint32_t> place = place_at(address);
  if (!place) return;
  const MutexLock lock(mutex_);
  uint32_t expected = generation.value;
  if (expected != 0 && state_[*place].generation.compare_exchange_strong(expected, 0))
    free_.insert(*place);
}

std::optional<uint32_t> FilePlaces::place_at(RemoteAddress address) const {
  if (address.value % slab_bytes_ != 0 || address.value / slab_bytes_ >= count_)
    return std::nullopt;
  return static_cast<uint32_t>(address.value / slab_bytes_);
}

std::optional<uint32_t> FilePlaces::enter(const Operation& operation) {
  const uint64_t place = operation.remote.value / slab_bytes_;
  const uint64_t in_slab = operation.remote.value % slab_bytes_;
  if (operation.key != key_ || operation.generation.value == 0 || place >= count_ ||
      operation.local.size() > slab_bytes_ - in_slab)
    return std::nullopt;
  const auto index = static_cast<uint32_t>(place);
  state_[index].operations.fetch_add(1, std::memory_order_seq_cst);
  if (is_under(index, operation.generation)) return index;
  leave(index);
  return std::nullopt;
}

}  // namespace farpage::rdma::file
