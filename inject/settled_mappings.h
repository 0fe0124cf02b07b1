// SettledMappings: which of a program's mappings are to be taken in, look after look.
//
// A mapping that is new may be gone again soon, so it is taken in when it was there in the look
// before, too. The kernel joins neighbours, and a mapping beside one that changes all the time (a
// heap that grows, an area whose protection is changed) is never the same in two looks. So a
// mapping that has changed is taken in when a part of it was there in both looks.
//
// It is taken in as a whole: the kernel cuts a mapping where what is registered ends, and mremap(2)
// of both parts fails. Where the program is faster, and its mapping grows between the look and the
// registration, a part is left behind, which may be small (behind_taken()).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inject/mappings.h"

namespace farpage::inject {

// Ranges are sorted and disjoint everywhere here. Threads: one at a time.
class SettledMappings {
 public:
  // What is smaller than `least_bytes` is not taken in.
  explicit SettledMappings(uint64_t least_bytes) : least_bytes_(least_bytes) {}

  // `eligible`: what a look has found, each range one mapping of the kernel's. Returns what is to
  // be taken in now. All of a mapping that was cut is taken in once more: another may have come in
  // the middle of it, which is not registered. In the first look all is settled.
  std::vector<AddressRange> choose(std::span<const AddressRange> eligible);
  // The last look has found what is to be looked at again.
  bool unsettled() const { return unsettled_; }
  // Those that begin where memory that is taken in ends. Whether such a mapping is a part of it,
  // the caller finds out.
  std::vector<AddressRange> behind_taken(std::span<const AddressRange> small) const;
  // Whatever choose() has returned and is eligible still.
  std::span<const AddressRange> taken() const { return taken_; }

 private:
  const uint64_t least_bytes_;
  bool has_looked_ = false;
  bool unsettled_ = false;
  std::vector<AddressRange> seen_;   // in the last look
  std::vector<AddressRange> whole_;  // mappings that were taken in as they are still
  std::vector<AddressRange> taken_;
};

}  // namespace farpage::inject
