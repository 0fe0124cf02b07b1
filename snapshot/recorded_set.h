// RecordedSet: which pages of an image guests have waited for after a restore, and roughly in which
// order. The next guest gets them before it asks.
//
// The same pages are touched each time, in another order; so there is a bit for each page of 4 KiB
// and a coarse class of its first touch: class 1 are the first 64, each further class has twice as
// many. Of several guests the earliest class counts. A page that was placed ahead is not touched by
// a fault, so nothing is learned from the replay. The set has at most half of the image's pages.
//
// In its file: a head with the digest of the image, then four bits for each page.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::snapshot {

// Threads: one at a time.
class RecordedSet {
 public:
  static constexpr uint8_t kClasses = 15;  // 0: not in the set
  static constexpr uint64_t kFirstClass = 64;
  static constexpr uint64_t kMaxPercent = 50;

  // Of the page that is touched as the n-th, from 0.
  static uint8_t class_of(uint64_t n) {
    const auto doubled = static_cast<unsigned>(std::bit_width(n / kFirstClass + 1));
    return static_cast<uint8_t>(doubled < kClasses ? doubled : kClasses);
  }

  // Empty.
  RecordedSet(std::string digest, uint64_t pages)
      : digest_(std::move(digest)), classes_(pages, uint8_t{0}) {}
  // What is in the bytes of a file. kConflict, kInvalid: as load().
  static Result<RecordedSet> decode(std::span<const std::byte> file, const std::string& digest,
                                    uint64_t pages);
  std::vector<std::byte> encode() const;
  // What the file has; kNotFound: there is none. kConflict: it is of another image. kInvalid: it is
  // damaged.
  static Result<RecordedSet> load(const std::string& path, const std::string& digest,
                                  uint64_t pages);
  // Replaces the file by one step: whoever reads it finds the former or the new one.
  Status publish(const std::string& path) const;

  // The union with what one guest has touched; true: something is new.
  bool add(std::span<const uint8_t> touches);
  uint64_t size() const { return size_; }
  // Class by class, each in the order of the pages.
  std::vector<uint32_t> in_order() const;

 private:
  bool take(uint64_t page, uint8_t touch, uint64_t most);

  std::string digest_;
  std::vector<uint8_t> classes_;
  uint64_t size_ = 0;
};

}  // namespace farpage::snapshot
