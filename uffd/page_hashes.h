// PageHashes: what the pages that were copied last had in them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/strong.h"

namespace farpage::uffd {

// A ring: of two copies of one page the later one counts. Threads: one.
class PageHashes {
 public:
  static constexpr size_t kPages = 512;  // at least those of one drop()

  void note(PageIndex page, std::span<const std::byte> bytes);
  void clear() { entries_.fill({}); }
  // nullopt: it is not among the last ones.
  std::optional<uint64_t> find(PageIndex page) const;
  static uint64_t hash(std::span<const std::byte> bytes);

 private:
  struct Entry {
    uint64_t page = UINT64_MAX;
    uint64_t hash = 0;
  };
  std::array<Entry, kPages> entries_;
  size_t next_ = 0;
  mutable size_t found_ = 0;  // the next search begins behind it
};

}  // namespace farpage::uffd
