// PageMender: writes a page again to a replica that has wrong bytes of it.
//
// A READ that brings other bytes than the checksum promises is answered by another replica, and the
// wrong one is reported here. What is reported is read once more, while the gate (copy_gate.h)
// keeps the write-back away: it may have been right, or have been written since. Then a replica
// with the right bytes is looked for, and they are written to the wrong one and read back. A
// replica that cannot be mended is lost: another one is made (region_repair.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "pager/links/copy_gate.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_directory.h"
#include "pager/links/slab_transfer.h"

namespace farpage::pager {

// A replica that was found to have wrong bytes of a page.
struct WrongPage {
  const LeaseMap* leases = nullptr;
  PageIndex page;
  const ReplicaLease* replica = nullptr;

  bool operator==(const WrongPage&) const = default;
};

// Threads: the repairer's, but for mended(): any. All that it is made with outlives it.
class PageMender {
 public:
  enum class End : uint8_t {
    kRight,    // it is not wrong, or its bytes are not needed any more
    kMended,   // it was read back
    kLost,     // the replica is
    kNoOther,  // no other replica has the right bytes now
    kUnknown,  // a replica could not be read: the next READ finds it again
  };

  PageMender(CopyGate& gate, const NodeDirectory& nodes, SlabTransfer& transfer)
      : gate_(gate), nodes_(nodes), transfer_(transfer) {}

  End mend(const WrongPage& wrong);
  uint64_t mended() const { return mended_.load(std::memory_order_relaxed); }

 private:
  End mend_in_gate(const WrongPage& wrong);
  // From `source`, which has the right bytes in the second page of the buffer.
  End write_again(const WrongPage& wrong, uint64_t checksum, const ReplicaLease& source);

  CopyGate& gate_;
  const NodeDirectory& nodes_;
  SlabTransfer& transfer_;
  std::atomic<uint64_t> mended_{0};
};

std::string_view to_string(PageMender::End end);

}  // namespace farpage::pager
