// KeyTable: maps rkeys to the memory a node has lent, for transports whose keys we choose.
//
// insert() lends a slab; withdraw() revokes its key. Each access to lent memory holds a Use, and a
// withdrawal ends only when the last Use is released. So a slab can be scrubbed and lent again
// without a late READ or WRITE in it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/strong.h"
#include "rdma/memory_host.h"

namespace farpage::rdma {

// The node finds a slab by the handle in the key, which is not secret, then compares the 128 random
// bits of the secret in constant time. So neither a refusal nor its timing reveals anything about
// the secret, and one key reveals nothing about another.
//
// Threads: any.
// Invariants:
//  1. After withdraw(key) returned, acquire() with that key finds nothing.
//  2. An entry lives until its Withdrawal is destroyed, which waits until no Use of it is left.
class KeyTable {
 private:
  struct Entry;

 public:
  static constexpr size_t kMaxKeys = 1U << 20;
  // Withdrawn keys that are remembered, to distinguish them from keys never issued.
  static constexpr size_t kMaxRemembered = 1U << 14;

  // The right to access a range of lent memory; delays the withdrawal of its key. Empty if
  // acquire() refused.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { release(); }

    explicit operator bool() const { return entry_ != nullptr; }
    // acquire() refused because this key was never issued (as far as is remembered): the caller may
    // be guessing. Not set for a withdrawn key, a wrong generation or wrong bounds.
    bool key_is_unknown() const { return key_is_unknown_; }
    std::span<std::byte> bytes() const { return bytes_; }
    int memfd() const;
    int file() const;         // -1: the slab is memory
    uint64_t offset() const;  // of bytes() in the slab
    // The key has been withdrawn, and a Withdrawal may be waiting for this Use.
    bool withdrawn() const;
    void release();

   private:
    friend class KeyTable;
    Use(KeyTable* table, Entry* entry, std::span<std::byte> bytes)
        : table_(table), entry_(entry), bytes_(bytes) {}
    KeyTable* table_ = nullptr;
    Entry* entry_ = nullptr;
    bool key_is_unknown_ = false;
    std::span<std::byte> bytes_;
  };

  // A key removed from the table. The destructor waits for the last Use, without a limit.
  class Withdrawal {
   public:
    Withdrawal() = default;
    Withdrawal(Withdrawal&&) noexcept;
    Withdrawal& operator=(Withdrawal&&) = delete;
    ~Withdrawal();

    explicit operator bool() const { return entry_ != nullptr; }
    // Whether the last Use was released within `limit`.
    bool drained_within(Nanoseconds limit);

   private:
    friend class KeyTable;
    Withdrawal(KeyTable* table, std::unique_ptr<Entry> entry);
    KeyTable* table_ = nullptr;
    std::unique_ptr<Entry> entry_;
  };

  KeyTable();
  ~KeyTable();  // no Use and no Withdrawal may be left
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  // Lends the slab under a new random key. kInvalid for an empty slab, kExhausted at kMaxKeys.
  Result<RemoteKey> insert(const SlabMemory& slab, Generation generation);

  // The range [address, address + bytes) of the slab with this key and generation, or an empty Use
  // when key or generation is wrong, bytes is 0, or the range is not wholly inside.
  Use acquire(const RemoteKey& key, Generation generation, RemoteAddress address, uint64_t bytes);
  // The whole slab.
  Use acquire(const RemoteKey& key, Generation generation);

  // Empty when the key is unknown. One withdrawal per key.
  Withdrawal withdraw(const RemoteKey& key);

  size_t size() const;

 private:
  struct Entry {
    SlabMemory slab;
    RemoteKey key;
    Generation generation;
    std::atomic<uint32_t> uses{0};
    std::atomic<bool> withdrawn{false};
  };

  // Sets `refused` when there is no such entry.
  Entry* find(const RemoteKey& key, Generation generation, Use& refused) FARPAGE_REQUIRES(mutex_);
  Use use(Entry* entry, std::span<std::byte> bytes) FARPAGE_REQUIRES(mutex_);
  void remember(const RemoteKey& withdrawn) FARPAGE_REQUIRES(mutex_);
  void release(Entry* entry);
  bool wait_unused(Entry& entry, Instant deadline);

  mutable Mutex mutex_;
  std::unordered_map<uint32_t, std::unique_ptr<Entry>> entries_
      FARPAGE_GUARDED_BY(mutex_);  // by handle
  std::unordered_map<uint32_t, RemoteKey> withdrawn_
      FARPAGE_GUARDED_BY(mutex_);  // by handle; the latest ones
  std::deque<uint32_t> withdrawn_order_ FARPAGE_GUARDED_BY(mutex_);

  // Withdrawals that wait for the last Use. A release that makes a count 0 then reads this; a
  // waiter increments this before it reads the count (both sequentially consistent). So one of the
  // two always sees the other.
  std::atomic<uint32_t> waiters_{0};
  Mutex drained_mutex_;
  ConditionVariable drained_;
};

}  // namespace farpage::rdma
