#include "rdma/shm/shm_peers.h"

#include <sys/stat.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <thread>

#include "base/host.h"

namespace farpage::rdma::shm {
namespace {

void add_counters(const ShmPeer& peer, HostCounters& sum) {
  const PeerPage& page = peer.page();
  sum.reads += page.reads.load(std::memory_order_relaxed);
  sum.writes += page.writes.load(std::memory_order_relaxed);
  sum.bytes_read += page.bytes_read.load(std::memory_order_relaxed);
  sum.bytes_written += page.bytes_written.load(std::memory_order_relaxed);
  sum.refused += page.refused.load(std::memory_order_relaxed);
}

// A copy that was in progress when the lease word was cleared.
struct OngoingCopy {
  std::shared_ptr<ShmPeer> peer;
  uint64_t copying = 0;
};

bool is_over(const OngoingCopy& copy) {
  return copy.peer->gone.load(std::memory_order_acquire) ||
         copy.peer->page().copying.load(std::memory_order_acquire) != copy.copying;
}

bool wait_for(const std::vector<OngoingCopy>& copies, Nanoseconds grace) {
  const Instant deadline = SteadyClock::read() + grace;
  for (const OngoingCopy& copy : copies) {
    while (!is_over(copy)) {
      if (SteadyClock::read() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

}  // namespace

ShmPeers::ShmPeers() : host_number_(random_u64()) {}

Result<std::shared_ptr<ShmPeer>> ShmPeers::add(Fd socket) {
  auto peer = std::make_shared<ShmPeer>();
  peer->socket = std::move(socket);
  FARPAGE_TRY(page_fd, create_memfd("farpage-peer", sizeof(PeerPage)));
  FARPAGE_TRY(mapping, Mapping::shared(page_fd.get(), sizeof(PeerPage)));
  peer->page_fd = std::move(page_fd);
  peer->page_mapping = std::move(mapping);
  ::new (peer->page_mapping.data()) PeerPage;
  peer->free_slots.resize(kMaxAttachments);
  std::iota(peer->free_slots.rbegin(), peer->free_slots.rend(), 0U);
  const MutexLock lock(mutex_);
  peers_.push_back(peer);
  return peer;
}

void ShmPeers::remove(const std::shared_ptr<ShmPeer>& peer) {
  peer->gone.store(true, std::memory_order_release);  // pairs with is_over()
  const MutexLock lock(mutex_);
  add_counters(*peer, departed_);
  std::erase(peers_, peer);
}

ShmPeers::Answer ShmPeers::answer(ShmPeer& peer, const Request& request) {
  if (request.kind == RequestKind::kAttach) return attach(peer, request);
  Answer answer;
  if (request.version != kProtocolVersion) {
    answer.reply.status = ReplyStatus::kVersion;
    return answer;
  }
  peer.greeted = true;
  answer.reply.lease = host_number_;
  answer.reply.bytes = sizeof(PeerPage);
  answer.descriptor = peer.page_fd.get();
  return answer;
}

ShmPeers::Answer ShmPeers::attach(ShmPeer& peer, const Request& request) {
  Answer answer;
  const MutexLock lock(mutex_);
  answer.use = keys_.acquire(request.key, request.generation);
  // Look up only keys that the table has verified.
  const auto lease = answer.use ? leases_.find(request.key) : leases_.end();
  if (lease == leases_.end()) {
    if (answer.use.key_is_unknown()) peer.guesses.add(request.key);
    answer.guesses = peer.guesses.too_many();
    answer.use.release();
    answer.reply.status = ReplyStatus::kRemoteAccess;
    return answer;
  }
  auto slot = peer.slots.find(request.key);
  if (slot == peer.slots.end()) {
    if (peer.free_slots.empty()) {
      answer.use.release();
      answer.reply.status = ReplyStatus::kExhausted;
      return answer;
    }
    slot = peer.slots.emplace(request.key, peer.free_slots.back()).first;
    peer.free_slots.pop_back();
  }
  peer.page().lease[slot->second].store(lease->second, std::memory_order_seq_cst);
  const std::span<std::byte> slab = answer.use.bytes();
  answer.reply.slot = slot->second;
  answer.reply.lease = lease->second;
  answer.reply.address = reinterpret_cast<uintptr_t>(slab.data());
  answer.reply.bytes = slab.size();
  answer.descriptor = answer.use.memfd();
  return answer;
}

Result<RemoteKey> ShmPeers::expose(const SlabMemory& slab, Generation generation) {
  struct stat info {};
  if (slab.memfd < 0 || ::fstat(slab.memfd, &info) != 0 ||
      static_cast<uint64_t>(info.st_size) < slab.bytes.size())
    return fail(ErrorCode::kInvalid, "slab.memfd must be a memfd of at least slab.bytes");
  const MutexLock lock(mutex_);
  FARPAGE_TRY(key, keys_.insert(slab, generation));
  leases_.emplace(key, next_lease_++);
  return key;
}

bool ShmPeers::withdraw(RemoteKey key, Nanoseconds grace) {
  std::vector<OngoingCopy> copies;
  {
    const MutexLock lock(mutex_);
    if (leases_.erase(key) == 0) return true;
    for (const std::shared_ptr<ShmPeer>& peer : peers_) {
      const auto slot = peer->slots.find(key);
      if (slot == peer->slots.end()) continue;
      peer->page().lease[slot->second].store(0, std::memory_order_seq_cst);  // see PeerPage
      const uint64_t copying = peer->page().copying.load(std::memory_order_seq_cst);
      if (copying % 2 != 0) copies.push_back({peer, copying});
      peer->free_slots.push_back(slot->second);
      peer->slots.erase(slot);
    }
  }
  // Waits for an attach reply that is being sent.
  (void)keys_.withdraw(key);
  return wait_for(copies, grace);
}

void ShmPeers::withdraw_all(Nanoseconds grace) {
  std::vector<RemoteKey> keys;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) keys.push_back(key);
  }
  for (const RemoteKey key : keys) (void)withdraw(key, grace);
}

HostCounters ShmPeers::counters() const {
  const MutexLock lock(mutex_);
  HostCounters sum = departed_;
  for (const std::shared_ptr<ShmPeer>& peer : peers_) add_counters(*peer, sum);
  sum.malformed = malformed_.load(std::memory_order_relaxed);
  sum.peers = peers_.size();
  return sum;
}

}  // namespace farpage::rdma::shm
