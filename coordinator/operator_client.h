// C++ client of what an operator does to a cluster beyond Client: farpage lend, rebalance.
#pragma once

#include <memory>

#include "base/result.h"
#include "coordinator/api.h"
#include "coordinator/client.h"

namespace farpage::coordinator {

// Threads: any; each call makes its own request and blocks up to the timeout. Fails as Client.
class OperatorClient {
 public:
  static Result<std::unique_ptr<OperatorClient>> create(const ClientOptions& options);
  virtual ~OperatorClient() = default;

  // See Rebalance.
  virtual Result<Rebalanced> rebalance(const Rebalance& rebalance) = 0;
  // Returns at once; NodeInfo::lend_bytes says whether the node is still on its way. kExhausted:
  // what would have to move has no room elsewhere. kConflict: it does not move, or the node drains.
  virtual Result<NodeInfo> lend(const NodeId& node, const NodeLend& lend) = 0;
};

}  // namespace farpage::coordinator
