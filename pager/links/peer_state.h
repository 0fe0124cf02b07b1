// PeerState: what one pager keeps for each memory node that it uses.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "pager/links/write_window.h"

namespace farpage::pager {

// All zeros: nothing has happened yet (NodeTable).
struct PeerState {
  // A wait for a node to acknowledge something. It may span several batches.
  struct Wait {
    Instant since{0};  // the first request, or the last acknowledgement
    Instant until{0};  // the latest time at which a batch wanted it; 0: nothing is outstanding
  };

  // Its channels were asked for. Any thread.
  std::atomic<bool> requested{false};
  // The time since which no port could connect to it; 0: the last attempt succeeded. Written by the
  // connector.
  std::atomic<int64_t> unreachable_since_ns{0};
  // Of the thread that evicts.
  Wait wait;
  WriteWindow window;
};

}  // namespace farpage::pager
