// Scrubber: reads what replicas have, only to check it: a page that is seldom read is found wrong
// while another replica has it still. Slabs in turn, each replica of 64 pages in one step; between
// two steps there is a rest, by the rate.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "pager/links/lease_map.h"
#include "pager/links/page_mender.h"
#include "pager/links/slab_transfer.h"

namespace farpage::pager {

// Threads: the repairer's. add(), remove() and next() under its mutex; the counts by any. The
// transfer outlives it.
class Scrubber {
 public:
  static constexpr uint32_t kPiecePages = 64;
  static constexpr Nanoseconds kBetweenRounds = Seconds(1);

  // 0: it reads nothing.
  Scrubber(uint64_t bytes_per_second, SlabTransfer& transfer)
      : bytes_per_second_(bytes_per_second), transfer_(transfer) {}

  bool enabled() const { return bytes_per_second_ > 0; }
  void add(const LeaseMap& leases) { regions_.push_back(&leases); }
  void remove(const LeaseMap& leases);
  bool has_regions() const { return !regions_.empty(); }

  struct Piece {
    const LeaseMap* leases = nullptr;
    PageIndex first;
    uint32_t pages = 0;
  };
  // The next piece of a slab that is leased; nullopt: a round through all regions has ended.
  std::optional<Piece> next();
  // Reads it, as far as checksums are known, from each live replica for which `may_read` holds, and
  // calls `wrong` with what is not right. Returns the bytes that it has read.
  template <typename MayRead, typename Wrong>
  uint64_t check(const Piece& piece, MayRead may_read, Wrong wrong) {
    uint64_t bytes = 0;
    const SlabLease& lease = *piece.leases->find(piece.first);
    for (const ReplicaLease* replica : lease.all())
      if (replica->is_read() && may_read(*replica)) bytes += check_replica(piece, *replica, wrong);
    return bytes;
  }
  // After a step that has read so much.
  Nanoseconds rest_after(Nanoseconds took, uint64_t bytes) const;

  uint64_t pages_checked() const { return pages_checked_.load(std::memory_order_relaxed); }
  uint64_t pages_wrong() const { return pages_wrong_.load(std::memory_order_relaxed); }

 private:
  using Checksums = std::array<uint64_t, kPiecePages>;

  // Of the piece: from its first to its last page with a checksum, which are written to `known`.
  static Piece known_part(const Piece& piece, Checksums& known);
  bool is_wrong(const Piece& part, uint32_t page, uint64_t known) const;

  template <typename Wrong>
  uint64_t check_replica(const Piece& piece, const ReplicaLease& replica, Wrong wrong) {
    Checksums known;
    const Piece part = known_part(piece, known);
    if (part.pages == 0) return 0;
    const size_t bytes = size_t{part.pages} << kPageShift;
    if (!transfer_.read(*part.leases, replica, part.first, transfer_.buffer().first(bytes)))
      return 0;
    for (uint32_t i = 0; i < part.pages; ++i) {
      if (known[i] == 0) continue;
      pages_checked_.fetch_add(1, std::memory_order_relaxed);
      // A replica that has missed a WRITE was lost before there was a new checksum.
      if (!is_wrong(part, i, known[i]) || !replica.is_read()) continue;
      pages_wrong_.fetch_add(1, std::memory_order_relaxed);
      wrong(WrongPage{part.leases, PageIndex{part.first.value + i}, &replica});
    }
    return bytes;
  }

  const uint64_t bytes_per_second_;
  SlabTransfer& transfer_;
  std::vector<const LeaseMap*> regions_;
  size_t region_ = 0;  // the next piece is in this one
  uint64_t page_ = 0;  // from here on
  std::atomic<uint64_t> pages_checked_{0};
  std::atomic<uint64_t> pages_wrong_{0};
};

}  // namespace farpage::pager
