// AccessTrace: which pages a program touched, in which order, which of the touches wrote, and which
// pages it discarded.
//
// The file is little-endian:
//   bytes  0-7   "FPTRACE2"
//   bytes  8-15  pages: each page number is below it
//   bytes 16-23  accesses
//   bytes 24-31  how many of the first accesses only warm the cache up
//   then 4 bytes an access: page number * 4, plus its kind
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::pager {

enum class AccessKind : uint8_t {
  kRead = 0,
  kWrite = 1,
  kDiscard = 2,  // the program has given up the content; it comes back as zeros
};

struct PageAccess {
  uint32_t page = 0;
  AccessKind kind = AccessKind::kRead;
  bool operator==(const PageAccess&) const = default;
};

inline constexpr uint64_t kMaxTracePages = uint64_t{1} << 30;  // 4 TiB, the largest window
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
    return {packed_[index] >> 2, static_cast<AccessKind>(packed_[index] & 3)};
  }
  bool operator==(const AccessTrace&) const = default;

  // How many pages are in use at the peak: touched, and not discarded since.
  uint64_t most_live() const;
  // Without the blocks of `block_pages` that have no access. Pages of one block stay neighbours.
  AccessTrace without_gaps(uint64_t block_pages) const;

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

}  // namespace farpage::pager
