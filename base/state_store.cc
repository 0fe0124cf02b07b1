#include "base/state_store.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace farpage {
namespace {

constexpr uint64_t kMagic = 0x3173'6761'7072'6166;  // "farpags1": changes with the format
constexpr size_t kHeaderBytes = 4096;
constexpr uint64_t kSecondHalf = uint64_t{1} << 63;
constexpr char kRanges[] = "memory/";  // the value: number of the descriptor

// Before each record. A value that was erased has kErased bytes.
struct RecordHead {
  uint32_t name_bytes;
  uint32_t value_bytes;
};
constexpr uint32_t kErased = UINT32_MAX;

constexpr uint64_t end_in_half(uint64_t end) {
  return end & ~kSecondHalf;
}

size_t record_bytes(std::string_view name, const std::string* value) {
  return sizeof(RecordHead) + name.size() + (value != nullptr ? value->size() : 0);
}

void write_record(std::byte* at, std::string_view name, const std::string* value) {
  const RecordHead head{static_cast<uint32_t>(name.size()),
                        value != nullptr ? static_cast<uint32_t>(value->size()) : kErased};
  std::memcpy(at, &head, sizeof head);
  std::memcpy(at + sizeof head, name.data(), name.size());
  if (value != nullptr) std::memcpy(at + sizeof head + name.size(), value->data(), value->size());
}

}  // namespace

Result<std::unique_ptr<StateStore>> StateStore::create(size_t log_bytes) {
  const size_t bytes = kHeaderBytes + 2 * log_bytes;
  FARPAGE_TRY(log, create_memfd("farpage-state", bytes));
  FARPAGE_TRY(memory, Mapping::shared(log.get(), bytes));
  std::unique_ptr<StateStore> store(new StateStore(std::move(log), std::move(memory)));
  store->header().half_bytes = log_bytes;
  store->header().magic = kMagic;
  return store;
}

Result<std::unique_ptr<StateStore>> StateStore::take_over(int descriptor) {
  Fd log(descriptor);
  struct stat status {};
  if (::fstat(log.get(), &status) != 0) return fail_errno("the state of the predecessor");
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes < kHeaderBytes) return fail(ErrorCode::kInvalid, "the state is no state");
  FARPAGE_TRY(memory, Mapping::shared(log.get(), bytes));
  std::unique_ptr<StateStore> store(new StateStore(std::move(log), std::move(memory)));
  const Header& header = store->header();
  if (header.magic != kMagic || header.half_bytes != (bytes - kHeaderBytes) / 2)
    return fail(ErrorCode::kInvalid, "the state is of another build");
  const MutexLock lock(store->mutex_);
  store->read_log();
  return store;
}

std::byte* StateStore::half(uint64_t end) const {
  return memory_.data() + kHeaderBytes + ((end & kSecondHalf) != 0 ? header().half_bytes : 0);
}

void StateStore::read_log() {
  const uint64_t end = header().end.load(std::memory_order_acquire);
  const std::byte* at = half(end);
  const std::byte* const last = at + end_in_half(end);
  while (at < last) {
    RecordHead head;
    std::memcpy(&head, at, sizeof head);
    const auto* text = reinterpret_cast<const char*>(at + sizeof head);
    std::string name(text, head.name_bytes);
    at += sizeof head + head.name_bytes;
    if (head.value_bytes == kErased) {
      values_.erase(name);
    } else {
      values_[std::move(name)].assign(text + head.name_bytes, head.value_bytes);
      at += head.value_bytes;
    }
  }
  for (auto at_range = values_.lower_bound(kRanges);
       at_range != values_.end() && at_range->first.starts_with(kRanges); ++at_range)
    ranges_.emplace(at_range->first.substr(sizeof kRanges - 1), Fd(std::stoi(at_range->second)));
}

bool StateStore::append(std::string_view name, const std::string* value) {
  const size_t bytes = record_bytes(name, value);
  uint64_t end = header().end.load(std::memory_order_relaxed);
  if (end_in_half(end) + bytes > std::min<size_t>(compact_at_, header().half_bytes)) {
    if (!compact()) return false;
    end = header().end.load(std::memory_order_relaxed);
    if (end_in_half(end) + bytes > header().half_bytes) return false;
  }
  write_record(half(end) + end_in_half(end), name, value);
  header().end.store(end + bytes, std::memory_order_release);
  return true;
}

// What is in the other half counts once `end` names it.
bool StateStore::compact() {
  const uint64_t old = header().end.load(std::memory_order_relaxed);
  const uint64_t half_bit = (old & kSecondHalf) ^ kSecondHalf;
  std::byte* const begin = half(half_bit);
  size_t used = 0;
  for (const auto& [name, value] : values_) {
    const size_t bytes = record_bytes(name, &value);
    if (used + bytes > header().half_bytes) return false;
    write_record(begin + used, name, &value);
    used += bytes;
  }
  header().end.store(half_bit | used, std::memory_order_release);
  compact_at_ = std::max(kLeastLog, kMultiple * used);
  (void)::fallocate(log_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    half(old) - memory_.data(), static_cast<off_t>(header().half_bytes));
  return true;
}

Status StateStore::put(const std::string& name, std::string value) {
  const MutexLock lock(mutex_);
  return put_locked(name, std::move(value));
}

Status StateStore::put_locked(const std::string& name, std::string value) {
  if (!append(name, &value))
    return fail(ErrorCode::kExhausted, "the state of the pager has no room for " + name);
  values_[name] = std::move(value);
  return {};
}

void StateStore::erase(const std::string& name) {
  const MutexLock lock(mutex_);
  erase_locked(name);
}

void StateStore::erase_locked(const std::string& name) {
  const auto at = values_.find(name);
  if (at == values_.end()) return;
  values_.erase(at);
  if (!append(name, nullptr)) (void)compact();  // which leaves it out
}

std::optional<std::string> StateStore::get(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto at = values_.find(name);
  if (at == values_.end()) return std::nullopt;
  return at->second;
}

std::map<std::string, std::string> StateStore::all(std::string_view prefix) const {
  const MutexLock lock(mutex_);
  std::map<std::string, std::string> found;
  for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix);
       ++at)
    found.insert(*at);
  return found;
}

Result<Mapping> StateStore::memory(const std::string& name, size_t bytes) {
  const MutexLock lock(mutex_);
  const auto known = ranges_.find(name);
  if (known != ranges_.end()) return Mapping::shared(known->second.get(), bytes);
  FARPAGE_TRY(range, create_memfd("farpage-state", bytes));
  FARPAGE_TRY(mapping, Mapping::shared(range.get(), bytes));
  FARPAGE_TRY_VOID(put_locked(kRanges + name, std::to_string(range.get())));
  ranges_.emplace(name, std::move(range));
  return mapping;
}

std::vector<StateStore::Part> StateStore::used_parts(const std::string& name) const {
  const MutexLock lock(mutex_);
  std::vector<Part> parts;
  const auto range = ranges_.find(name);
  if (range == ranges_.end()) return parts;
  off_t at = 0;
  while ((at = ::lseek(range->second.get(), at, SEEK_DATA)) >= 0) {
    const off_t end = ::lseek(range->second.get(), at, SEEK_HOLE);
    if (end <= at) break;
    parts.push_back({static_cast<size_t>(at), static_cast<size_t>(end - at)});
    at = end;
  }
  return parts;
}

void StateStore::release_ranges() {
  const MutexLock lock(mutex_);
  for (auto& [name, range] : ranges_) (void)range.release();
  ranges_.clear();
}

void StateStore::drop_memory(const std::string& name) {
  const MutexLock lock(mutex_);
  erase_locked(kRanges + name);
  ranges_.erase(name);
}

std::set<int> StateStore::descriptors() const {
  const MutexLock lock(mutex_);
  std::set<int> all{log_.get()};
  for (const auto& [name, range] : ranges_) all.insert(range.get());
  return all;
}

}  // namespace farpage
