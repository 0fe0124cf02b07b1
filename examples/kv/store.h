// Store: keys and index in local memory, values in a given memory resource: a farpage region.
#pragma once

#include <cstddef>
#include <functional>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kv/clock.h"

namespace kv {

inline constexpr size_t kMaxKeyBytes = 250;
inline constexpr size_t kMaxValueBytes = size_t{64} << 20;

enum class PutResult {
  kStored,
  kBadKey,        // empty, or longer than kMaxKeyBytes
  kValueTooLong,  // longer than kMaxValueBytes
  kNoRoom,        // and no expired value left to free
};
std::string_view to_string(PutResult result);

// Threads: one at a time. `values` and `clock` outlive it.
// Invariants:
//  1. a put that fails changes nothing;
//  2. lookup, deletion and expiry touch no value: a far page is touched only to write a value, or
//     when the caller reads the result of get().
class Store {
 public:
  Store(std::pmr::memory_resource& values, const Clock& clock) : values_(values), clock_(clock) {}
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Replaces the value and its time to live. Without a time to live, the value stays until it is
  // deleted.
  PutResult put(std::string_view key, std::span<const std::byte> value,
                std::optional<Milliseconds> time_to_live = std::nullopt);
  // The value in place, valid until the next call other than get(). nullopt: never put, deleted, or
  // expired.
  std::optional<std::span<const std::byte>> get(std::string_view key) const;
  // False: no such key, or expired.
  bool remove(std::string_view key);

  // Frees at most `limit` expired values, oldest first; returns their number. put() calls it when
  // there is no room.
  size_t remove_expired(size_t limit);

  // The number of keys, including expired ones not freed yet.
  size_t size() const { return entries_.size(); }
  size_t value_bytes() const { return value_bytes_; }

 private:
  struct Entry {
    std::byte* data = nullptr;  // null when bytes is 0
    size_t bytes = 0;
    std::optional<Milliseconds> expires_at;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };
  using Entries = std::unordered_map<std::string, Entry, Hash, std::equal_to<>>;

  bool is_expired(const Entry& entry) const {
    return entry.expires_at && *entry.expires_at <= clock_.now();
  }
  std::optional<Entry> make_entry(std::span<const std::byte> value);
  std::byte* allocate(size_t bytes);
  void free(const Entry& entry);
  void erase(Entries::iterator at);

  std::pmr::memory_resource& values_;
  const Clock& clock_;
  Entries entries_;
  std::set<std::pair<Milliseconds, std::string_view>> by_expiry_;  // keys: those of entries_
  size_t value_bytes_ = 0;
};

}  // namespace kv
