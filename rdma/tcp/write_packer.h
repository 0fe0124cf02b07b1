// WritePacker: the data of WRITEs as packed pages, in memory that a channel has from its start.
#pragma once

#include <memory>
#include <span>

#include "base/mapping.h"
#include "base/page_codec.h"
#include "rdma/limits.h"
#include "rdma/tcp/packed_pages.h"

namespace farpage::rdma::tcp {

// Threads: one. Neither pack() nor release() allocates.
class WritePacker {
 public:
  // Of two WRITEs of the longest kind: one that is being sent, and the next.
  static constexpr size_t kRingBytes = 2 * (kMaxOperationBytes / kPageBytes) * kMaxPackedPageBytes;
  // Where the last kRecentPages or so do not compress to kMaxPercent, one WRITE in kSampled is
  // tried.
  static constexpr size_t kRecentPages = 32;
  static constexpr size_t kMaxPercent = 60;
  static constexpr uint32_t kSampled = 64;

  static Result<std::unique_ptr<WritePacker>> create(PackWrites when);

  // The packed form, until release(). Empty: the data goes as it is, because it is not whole pages,
  // does not get smaller (kAlways: whatever its size), or there is no room.
  std::span<std::byte> pack(std::span<const std::byte> data);
  // Packed forms are released in the order in which they were made.
  void release(std::span<const std::byte> packed);

 private:
  explicit WritePacker(PackWrites when) : always_(when == PackWrites::kAlways) {}
  bool is_worth_trying();
  // Contiguous, of at least so many bytes; empty: there is none.
  std::span<std::byte> room(size_t bytes);

  const bool always_;
  Mapping ring_;
  PageCodec codec_;
  // The packed forms in the ring: from head_ to tail_, or to the end and from 0 to tail_.
  size_t count_ = 0;
  size_t head_ = 0;
  size_t tail_ = 0;
  size_t recent_bytes_ = 0;  // of the last kRecentPages or so, packed
  uint32_t not_tried_ = 0;
};

}  // namespace farpage::rdma::tcp
