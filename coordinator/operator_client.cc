#include "coordinator/operator_client.h"

#include <fmt/format.h>

#include "coordinator/api_json.h"
#include "coordinator/leader_caller.h"

namespace farpage::coordinator {
namespace {

class HttpOperatorClient final : public OperatorClient {
 public:
  HttpOperatorClient(std::unique_ptr<LeaderCaller> caller, Milliseconds timeout)
      : caller_(std::move(caller)), timeout_(timeout) {}

  Result<Rebalanced> rebalance(const Rebalance& rebalance) override {
    FARPAGE_TRY(answer, caller_->call("POST", "/v1/rebalance", encode(rebalance), timeout_));
    return decode_rebalanced(answer);
  }
  Result<NodeInfo> lend(const NodeId& node, const NodeLend& lend) override {
    FARPAGE_TRY(answer, caller_->call("PUT", fmt::format("/v1/nodes/{}/lend", node.value),
                                      encode(lend), timeout_));
    return decode_node_info(answer);
  }

 private:
  const std::unique_ptr<LeaderCaller> caller_;
  const Milliseconds timeout_;
};

}  // namespace

Result<std::unique_ptr<OperatorClient>> OperatorClient::create(const ClientOptions& options) {
  FARPAGE_TRY(caller, LeaderCaller::create(options.url, options.token));
  if (options.timeout <= Milliseconds(0))
    return fail(ErrorCode::kInvalid, "coordinator: timeout must be more than 0 ms");
  return std::make_unique<HttpOperatorClient>(std::move(caller), options.timeout);
}

}  // namespace farpage::coordinator
