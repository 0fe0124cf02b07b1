#include "kv/store.h"

#include <cstring>
#include <new>
#include <utility>

namespace kv {
namespace {

constexpr size_t kValueAlignment = 16;
// Freed at once to make room for a value.
constexpr size_t kExpireBatch = 64;

}  // namespace

std::string_view to_string(PutResult result) {
  switch (result) {
    case PutResult::kStored:
      return "stored";
    case PutResult::kBadKey:
      return "a key has 1 to 250 bytes";
    case PutResult::kValueTooLong:
      return "a value has at most 64 MiB";
    case PutResult::kNoRoom:
      return "no room: delete something, or make the region larger";
  }
  return "unknown";
}

Store::~Store() {
  for (const auto& [key, entry] : entries_) free(entry);
}

PutResult Store::put(std::string_view key, std::span<const std::byte> value,
                     std::optional<Milliseconds> time_to_live) {
  if (key.empty() || key.size() > kMaxKeyBytes) return PutResult::kBadKey;
  if (value.size() > kMaxValueBytes) return PutResult::kValueTooLong;
  std::optional<Entry> fresh = make_entry(value);
  if (!fresh) return PutResult::kNoRoom;
  if (time_to_live) fresh->expires_at = clock_.now() + *time_to_live;
  // Looked up after make_entry(), which may free the previous value if it has expired.
  if (const auto former = entries_.find(key); former != entries_.end()) erase(former);
  const auto at = entries_.emplace(std::string(key), *fresh).first;
  if (fresh->expires_at) by_expiry_.insert({*fresh->expires_at, at->first});
  value_bytes_ += fresh->bytes;
  return PutResult::kStored;
}

std::optional<Store::Entry> Store::make_entry(std::span<const std::byte> value) {
  if (value.empty()) return Entry{};
  std::byte* data = allocate(value.size());
  while (data == nullptr && remove_expired(kExpireBatch) > 0) data = allocate(value.size());
  if (data == nullptr) return std::nullopt;
  std::memcpy(data, value.data(), value.size());
  return Entry{.data = data, .bytes = value.size(), .expires_at = std::nullopt};
}

std::byte* Store::allocate(size_t bytes) {
  try {
    return static_cast<std::byte*>(values_.allocate(bytes, kValueAlignment));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Store::free(const Entry& entry) {
  if (entry.data != nullptr) values_.deallocate(entry.data, entry.bytes, kValueAlignment);
}

std::optional<std::span<const std::byte>> Store::get(std::string_view key) const {
  const auto at = entries_.find(key);
  if (at == entries_.end() || is_expired(at->second)) return std::nullopt;
  return std::span<const std::byte>(at->second.data, at->second.bytes);
}

bool Store::remove(std::string_view key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return false;
  const bool was_there = !is_expired(at->second);
  erase(at);
  return was_there;
}

size_t Store::remove_expired(size_t limit) {
  const Milliseconds now = clock_.now();
  size_t removed = 0;
  while (removed < limit && !by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    erase(entries_.find(by_expiry_.begin()->second));
    ++removed;
  }
  return removed;
}

void Store::erase(Entries::iterator at) {
  const Entry entry = at->second;
  if (entry.expires_at) by_expiry_.erase({*entry.expires_at, at->first});
  entries_.erase(at);
  value_bytes_ -= entry.bytes;
  free(entry);
}

}  // namespace kv
