// PeerState: what one pager keeps for each memory node that it uses.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "pager/write_window.h"

namespace farpage::pager {

// All zeros: nothing has happened yet (NodeTable).
struct PeerState {
  // For a node to acknowledge something. It may be longer than a batch: those that follow go on
  // with it.
  struct Wait {
    Instant since{0};  // it was asked first, or has acknowledged last
    Instant until{0};  // a batch has wanted it; 0: it owes nothing
  };

  // Its channels were asked for. Any thread.
  std::atomic<bool> requested{false};
  // Since when no port could connect to it; 0: it could. Written by the connector.
  std::atomic<int64_t> unreachable_since_ns{0};
  // Of whoever evicts.
  Wait wait;
  WriteWindow window;
};

}  // namespace farpage::pager
