#include "rdma/key_table.h"

#include <utility>

#include "base/check.h"
#include "base/host.h"

namespace farpage::rdma {

namespace {

// Compares two words without a branch, so the time does not depend on where they differ.
bool same_secret(const RemoteKey& a, const RemoteKey& b) {
  return ((a.secret[0] ^ b.secret[0]) | (a.secret[1] ^ b.secret[1])) == 0;
}

}  // namespace

KeyTable::Use::Use(Use&& other) noexcept
    : table_(other.table_),
      entry_(std::exchange(other.entry_, nullptr)),
      key_is_unknown_(other.key_is_unknown_),
      bytes_(std::exchange(other.bytes_, {})) {}

KeyTable::Use& KeyTable::Use::operator=(Use&& other) noexcept {
  if (this != &other) {
    release();
    table_ = other.table_;
    entry_ = std::exchange(other.entry_, nullptr);
    key_is_unknown_ = other.key_is_unknown_;
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

int KeyTable::Use::memfd() const {
  return entry_->slab.memfd;
}

int KeyTable::Use::file() const {
  return entry_->slab.file;
}

uint64_t KeyTable::Use::offset() const {
  return static_cast<uint64_t>(bytes_.data() - entry_->slab.bytes.data());
}

bool KeyTable::Use::withdrawn() const {
  return entry_ != nullptr && entry_->withdrawn.load(std::memory_order_acquire);
}

void KeyTable::Use::release() {
  bytes_ = {};
  if (entry_ != nullptr) table_->release(std::exchange(entry_, nullptr));
}

KeyTable::Withdrawal::Withdrawal(KeyTable* table, std::unique_ptr<Entry> entry)
    : table_(table), entry_(std::move(entry)) {}

KeyTable::Withdrawal::Withdrawal(Withdrawal&&) noexcept = default;

KeyTable::Withdrawal::~Withdrawal() {
  if (entry_ != nullptr) table_->wait_unused(*entry_, Nanoseconds::max());
}

bool KeyTable::Withdrawal::drained_within(Nanoseconds limit) {
  return entry_ == nullptr || table_->wait_unused(*entry_, SteadyClock::read() + limit);
}

KeyTable::KeyTable() = default;

KeyTable::~KeyTable() {
  for (const auto& [key, entry] : entries_) {
    const uint32_t uses = entry->uses.load(std::memory_order_acquire);
    FARPAGE_CHECK(uses == 0, "%u uses of lent memory outlive its table", uses);
  }
}

Result<RemoteKey> KeyTable::insert(const SlabMemory& slab, Generation generation) {
  if (slab.bytes.empty()) return fail(ErrorCode::kInvalid, "slab.bytes must not be empty");
  auto entry = std::make_unique<Entry>();
  entry->slab = slab;
  entry->generation = generation;
  const MutexLock lock(mutex_);
  if (entries_.size() >= kMaxKeys)
    return fail(ErrorCode::kExhausted, "too many slabs are lent: take some back first");
  RemoteKey key{random_u32(), {random_u64(), random_u64()}};
  while (entries_.count(key.value) != 0 || withdrawn_.count(key.value) != 0)
    key.value = random_u32();
  entry->key = key;
  entries_.emplace(key.value, std::move(entry));
  return key;
}

KeyTable::Entry* KeyTable::find(const RemoteKey& key, Generation generation, Use& refused) {
  const auto found = entries_.find(key.value);
  if (found != entries_.end() && same_secret(found->second->key, key))
    return found->second->generation == generation ? found->second.get() : nullptr;
  const auto withdrawn = withdrawn_.find(key.value);
  refused.key_is_unknown_ = withdrawn == withdrawn_.end() || !same_secret(withdrawn->second, key);
  return nullptr;
}

void KeyTable::remember(const RemoteKey& withdrawn) {
  withdrawn_.emplace(withdrawn.value, withdrawn);
  withdrawn_order_.push_back(withdrawn.value);
  if (withdrawn_order_.size() <= kMaxRemembered) return;
  withdrawn_.erase(withdrawn_order_.front());
  withdrawn_order_.pop_front();
}

KeyTable::Use KeyTable::use(Entry* entry, std::span<std::byte> bytes) {
  entry->uses.fetch_add(1, std::memory_order_relaxed);  // ordered by mutex_ before a withdrawal
  return Use(this, entry, bytes);
}

KeyTable::Use KeyTable::acquire(const RemoteKey& key, Generation generation, RemoteAddress address,
                                uint64_t bytes) {
  const MutexLock lock(mutex_);
  Use refused;
  Entry* entry = find(key, generation, refused);
  if (entry == nullptr || bytes == 0) return refused;
  const std::span<std::byte> slab = entry->slab.bytes;
  const auto base = reinterpret_cast<uintptr_t>(slab.data());
  if (address.value < base) return {};
  const uint64_t offset = address.value - base;
  if (bytes > slab.size() || offset > slab.size() - bytes) return {};
  return use(entry, slab.subspan(offset, bytes));
}

KeyTable::Use KeyTable::acquire(const RemoteKey& key, Generation generation) {
  const MutexLock lock(mutex_);
  Use refused;
  Entry* entry = find(key, generation, refused);
  if (entry == nullptr) return refused;
  return use(entry, entry->slab.bytes);
}

KeyTable::Withdrawal KeyTable::withdraw(const RemoteKey& key) {
  const MutexLock lock(mutex_);
  auto node = entries_.extract(key.value);
  if (node.empty()) return {};
  remember(node.mapped()->key);
  node.mapped()->withdrawn.store(true, std::memory_order_release);
  return Withdrawal(this, std::move(node.mapped()));
}

size_t KeyTable::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void KeyTable::release(Entry* entry) {
  if (entry->uses.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  // The entry may be destroyed from here on: access only the table.
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  const MutexLock lock(drained_mutex_);
  drained_.notify_all();
}

bool KeyTable::wait_unused(Entry& entry, Instant deadline) {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  MutexLock lock(drained_mutex_);
  const auto unused = [&] { return entry.uses.load(std::memory_order_seq_cst) == 0; };
  bool drained = true;
  if (deadline == Nanoseconds::max()) {
    drained_.wait(lock, unused);
  } else {
    const std::chrono::steady_clock::time_point until{deadline};
    drained = drained_.wait_until(lock, until, unused);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return drained;
}

}  // namespace farpage::rdma
