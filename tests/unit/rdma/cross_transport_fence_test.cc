// One node, two transports: a channel fences the previous one of its session on either transport.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "rdma/session_fences.h"
#include "rdma/shm/shm.h"
#include "rdma/tcp/tcp.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma {
namespace {

constexpr size_t kPages = 64;  // of one WRITE
constexpr std::byte kOlder{0xAA};
constexpr std::byte kNewer{0xBB};

TEST(CrossTransportFence, LateWritesOverTcpDoNotUndoANewerOneOverSharedMemory) {
  std::string directory = std::filesystem::temp_directory_path() / "farpage-fence-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto fences = std::make_shared<SessionFences>();
  TcpHostOptions tcp_options;
  tcp_options.fences = fences;
  ShmHostOptions shm_options;
  shm_options.socket_path = directory + "/node.sock";
  shm_options.fences = fences;
  const auto tcp_host = make_tcp_memory_host(tcp_options).value();
  auto shm_host = make_shm_memory_host(shm_options).value();

  TestSlab slab(kPages);
  TestBorrower borrower(2 * kPages);
  borrower.options.session = 77;
  const std::span<std::byte> older = borrower.page(0, kPages * kPageBytes);
  const std::span<std::byte> newer = borrower.page(kPages, kPages * kPageBytes);
  std::fill(older.begin(), older.end(), kOlder);
  std::fill(newer.begin(), newer.end(), kNewer);

  // Far more than any socket buffers: some are applied, one is partly received, the rest pending.
  slab.lend_on(*tcp_host);
  const auto former =
      make_tcp_transport()->connect(tcp_host->address(), borrower.options, {}).value();
  const Operation write_older = slab.write(0, older);
  const std::vector<Operation> writes(borrower.options.operations_in_flight, write_older);
  ASSERT_GT(former->post(writes), 0U);

  slab.lend_on(*shm_host);
  const auto transport = make_shm_transport();
  const auto latter = transport->connect(shm_host->address(), borrower.options, {}).value();
  ASSERT_EQ(run(*latter, slab.write(0, newer)), CompletionStatus::kOk);

  std::array<Completion, 64> done;
  while (former->wait(done, Seconds(30)) > 0) {
  }
  EXPECT_NE(run(*former, write_older), CompletionStatus::kOk);
  EXPECT_FALSE(former->usable());
  const std::span<const std::byte> seen = slab.memory.bytes();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), kNewer), static_cast<ptrdiff_t>(seen.size()));
  EXPECT_TRUE(latter->usable());
  shm_host.reset();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace farpage::rdma
