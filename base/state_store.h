// StateStore: what a process leaves to its successor when it is killed at any moment: named values,
// and named ranges of memory.
//
// Values are records in a log in shared memory; the last record of a name counts. A record is there
// once the end of the log has moved past it, which is one store, so a process that is killed in the
// middle of put() has changed nothing. When the log has become some times as large as what counts,
// that is copied to the other half of the memory, and one store makes it the log.
//
// The memory is a memfd, and each range is another one. They survive by their descriptors: in a
// table that another process shares (clone(2) with CLONE_FILES).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"

namespace farpage {

// Threads: any; a lock is held for a memcpy, and while a range is created.
// Invariant: a successor finds the values and ranges as they were before or after the call that was
// interrupted.
class StateStore {
 public:
  // Unit: bytes of one half of the log. Memory is used as it fills.
  static constexpr size_t kLogBytes = size_t{256} << 20;

  static Result<std::unique_ptr<StateStore>> create(size_t log_bytes = kLogBytes);
  // Of a predecessor that is dead. `descriptor` becomes the store's own. kInvalid: it is none, or
  // one of another format.
  static Result<std::unique_ptr<StateStore>> take_over(int descriptor);
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  int descriptor() const { return log_.get(); }
  // The log goes on without this store: its new owner closes the descriptor.
  int release_log() { return log_.release(); }
  // So do the ranges: only a look was wanted.
  void release_ranges();

  // kExhausted: the values take more than one half of the log. Then nothing has changed.
  Status put(const std::string& name, std::string value);
  void erase(const std::string& name);
  std::optional<std::string> get(const std::string& name) const;
  // Those whose names begin with `prefix`, in the order of the names.
  std::map<std::string, std::string> all(std::string_view prefix) const;

  // Shared memory, of zeros at first; the successor gets the same by the same name and size.
  Result<Mapping> memory(const std::string& name, size_t bytes);
  // A part of a range. Reading the rest would make the kernel give it memory.
  struct Part {
    size_t offset = 0;
    size_t bytes = 0;
  };
  // Where the range may have something else than zeros.
  std::vector<Part> used_parts(const std::string& name) const;
  // Present mappings of it stay valid.
  void drop_memory(const std::string& name);
  // The descriptors of the store.
  std::set<int> descriptors() const;

 private:
  // The log is made anew when it is larger than this, and than a multiple of what counts.
  static constexpr size_t kLeastLog = size_t{1} << 20;
  static constexpr size_t kMultiple = 4;

  struct Header {
    uint64_t magic;
    uint64_t half_bytes;
    std::atomic<uint64_t> end;  // of the log; the upper bit: of the second half
  };
  StateStore(Fd log, Mapping memory) : log_(std::move(log)), memory_(std::move(memory)) {}

  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  std::byte* half(uint64_t end) const;
  void read_log() FARPAGE_REQUIRES(mutex_);
  bool append(std::string_view name, const std::string* value) FARPAGE_REQUIRES(mutex_);
  bool compact() FARPAGE_REQUIRES(mutex_);
  Status put_locked(const std::string& name, std::string value) FARPAGE_REQUIRES(mutex_);
  void erase_locked(const std::string& name) FARPAGE_REQUIRES(mutex_);

  Fd log_;
  const Mapping memory_;
  mutable Mutex mutex_;
  size_t compact_at_ FARPAGE_GUARDED_BY(mutex_) = kLeastLog;
  std::map<std::string, std::string, std::less<>> values_ FARPAGE_GUARDED_BY(mutex_);
  std::map<std::string, Fd> ranges_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage
