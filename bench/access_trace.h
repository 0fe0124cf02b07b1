// AccessTrace: which pages a program touched, in which order, and which of the touches wrote.
//
// The file is little-endian:
//   bytes  0-7   "FPTRACE1"
//   bytes  8-15  pages: each page number is below it
//   bytes 16-23  accesses
//   bytes 24-31  how many of the first accesses only warm the cache up
//   then 4 bytes an access: page number * 2, plus 1 for a write
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::bench {

struct PageAccess {
  uint32_t page = 0;
  bool write = false;
  bool operator==(const PageAccess&) const = default;
};

inline constexpr uint64_t kMaxTracePages = uint64_t{1} << 28;  // 1 TiB, the limit of the benchmarks
inline constexpr uint64_t kMaxTraceAccesses = uint64_t{1} << 31;

// Threads: one.
// Invariants: each page is below pages(), and warm_up() is at most size().
class AccessTrace {
 public:
  // 1 <= pages <= kMaxTracePages.
  explicit AccessTrace(uint64_t pages);

  // At most kMaxTraceAccesses.
  void add(PageAccess access);
  // Marks the accesses added so far as the warm-up.
  void end_warm_up() { warm_up_ = size(); }

  uint64_t pages() const { return pages_; }
  uint64_t size() const { return packed_.size(); }
  uint64_t warm_up() const { return warm_up_; }
  PageAccess operator[](uint64_t index) const {
    return {packed_[index] >> 1, (packed_[index] & 1) != 0};
  }
  bool operator==(const AccessTrace&) const = default;

  std::vector<std::byte> encode() const;
  // kInvalid: encode() cannot have produced these bytes.
  static Result<AccessTrace> decode(std::span<const std::byte> bytes);

  // kInvalid, with the path: the file cannot be written or read, or is not a trace.
  Status write_file(const std::string& path) const;
  static Result<AccessTrace> read_file(const std::string& path);

 private:
  uint64_t pages_;
  uint64_t warm_up_ = 0;
  std::vector<uint32_t> packed_;
};

}  // namespace farpage::bench
