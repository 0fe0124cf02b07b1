// The transport contract over verbs, both sides in this process. Runs in the lab.
#include "rdma/verbs/verbs.h"
#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

class VerbsHarness final : public Harness {
 public:
  Result<std::unique_ptr<MemoryHost>> make_host() override { return make_verbs_memory_host({}); }
  std::unique_ptr<Transport> make_transport() override {
    return std::move(*make_verbs_transport({}));
  }
  QueuePairExchange exchange_with(MemoryHost& host) override {
    return [&host](const QueuePairEndpoint& ours) { return host.accept(ours); };
  }
  bool checks_generation() const override { return false; }
  bool counts_operations() const override { return false; }
  int long_test_operations() const override { return 2000; }
};

INSTANTIATE_TEST_SUITE_P(Verbs, TransportContract,
                         ::testing::Values(ContractCase{
                             "rxe", [] { return std::make_unique<VerbsHarness>(); }}),
                         case_name);

}  // namespace
}  // namespace farpage::rdma::contract
