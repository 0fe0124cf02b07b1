// The transport contract over tcp, shm and loop.
#include <cstdlib>
#include <filesystem>

#include "rdma/loop/loop.h"
#include "rdma/shm/shm.h"
#include "rdma/tcp/tcp.h"
#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

class TcpHarness final : public Harness {
 public:
  explicit TcpHarness(unsigned server_threads, PackWrites pack_writes = PackWrites::kNever)
      : server_threads_(server_threads), pack_writes_(pack_writes) {}

  Result<std::unique_ptr<MemoryHost>> make_host() override {
    TcpHostOptions options;
    options.server_threads = server_threads_;
    return make_tcp_memory_host(options);
  }
  std::unique_ptr<Transport> make_transport() override { return make_tcp_transport(); }
  PackWrites pack_writes() const override { return pack_writes_; }

 private:
  const unsigned server_threads_;
  const PackWrites pack_writes_;
};

class ShmHarness final : public Harness {
 public:
  ShmHarness() {
    std::string pattern = std::filesystem::temp_directory_path() / "farpage-shm-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~ShmHarness() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  Result<std::unique_ptr<MemoryHost>> make_host() override {
    ShmHostOptions options;
    options.socket_path = directory_ + "/node.sock";
    return make_shm_memory_host(options);
  }
  std::unique_ptr<Transport> make_transport() override { return make_shm_transport(); }

 private:
  std::string directory_;
};

class LoopHarness final : public Harness {
 public:
  explicit LoopHarness(const LoopFaults& faults) {
    LoopOptions options;
    options.seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) + 1;
    options.faults = faults;
    std::printf("loop seed %lu\n", static_cast<unsigned long>(options.seed));
    network_ = make_loop_network(options);
  }

  Result<std::unique_ptr<MemoryHost>> make_host() override {
    return make_loop_memory_host(network_, "node");
  }
  std::unique_ptr<Transport> make_transport() override { return make_loop_transport(network_); }

 private:
  std::shared_ptr<LoopNetwork> network_;
};

LoopFaults slow_and_unordered() {
  LoopFaults faults;
  faults.delay_polls = 5;
  faults.reorder = true;
  return faults;
}

INSTANTIATE_TEST_SUITE_P(
    , TransportContract,
    ::testing::Values(
        ContractCase{"tcp", [] { return std::make_unique<TcpHarness>(1); }},
        ContractCase{"tcp2", [] { return std::make_unique<TcpHarness>(2); }},
        ContractCase{"packed", [] { return std::make_unique<TcpHarness>(2, PackWrites::kAlways); }},
        ContractCase{"shm", [] { return std::make_unique<ShmHarness>(); }},
        ContractCase{"loop", [] { return std::make_unique<LoopHarness>(LoopFaults{}); }},
        ContractCase{"loose", [] { return std::make_unique<LoopHarness>(slow_and_unordered()); }}),
    case_name);

}  // namespace
}  // namespace farpage::rdma::contract
