// Parses the names of transports and makes the borrower's end of each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "rdma/transport.h"
#include "rdma/verbs/verbs.h"

namespace farpage::rdma {

struct TransportChoice {
  bool automatic = false;  // transports that cannot work here are skipped; named ones must work
  std::vector<TransportKind> kinds;
};

// "auto" or a list such as "tcp,shm". kInvalid names `field`, the setting with the text.
Result<TransportChoice> parse_transports(const std::string& text, const std::string& field);

// One for each kind of the choice, in its order. `loop` is not made here: it needs its network.
Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportChoice& choice,
                                                                const VerbsOptions& verbs = {});

}  // namespace farpage::rdma
