// A thousand connections to the hand-over socket that send invalid packets.
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "rdma/shm/seqpacket.h"
#include "rdma/shm/shm.h"
#include "rdma/shm/shm_message.h"
#include "tests/unit/rdma/process_use.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma::shm {
namespace {

class ShmHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::err);
    std::string pattern = std::filesystem::temp_directory_path() / "farpage-shm-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    host_ = make_shm_memory_host({directory_ + "/node.sock"}).value();
    slab_.lend_on(*host_);
  }
  void TearDown() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }

  // The next packet; blocks. Descriptors that come with it are closed.
  static PacketOutcome receive(int socket) {
    pollfd entry{socket, POLLIN, 0};
    if (::poll(&entry, 1, 20'000) != 1) return PacketOutcome::kWouldBlock;
    std::array<std::byte, 128> buffer{};
    return receive_packet(socket, buffer).outcome;
  }

  // Ends when the host hangs up.
  void attack(std::mt19937_64& random) {
    const Fd socket = connect_at(shm_address_from(host_->address().text)->socket_path).value();
    if (random() % 4 != 0) {
      (void)send_packet(socket.get(), encode(Request{}), -1);
      ASSERT_EQ(receive(socket.get()), PacketOutcome::kDone);
    }
    // A packet that is invalid here, sometimes with a descriptor.
    Request request{kProtocolVersion, RequestKind::kAttach, {static_cast<uint32_t>(random())}, {1}};
    const auto bytes = encode(request);
    std::vector<std::byte> packet(bytes.begin(), bytes.end());
    switch (random() % 4) {
      case 0:
        packet[random() % 4] ^= static_cast<std::byte>(1 + random() % 255);
        break;
      case 1:
        packet.resize(1 + random() % 15);
        break;
      case 2:
        packet.resize(17 + random() % 60'000);
        break;
      default:
        for (std::byte& byte : packet) byte = static_cast<std::byte>(random());
    }
    (void)send_packet(socket.get(), packet, random() % 3 == 0 ? slab_.memfd.get() : -1);
    PacketOutcome outcome = PacketOutcome::kDone;
    while (outcome == PacketOutcome::kDone) outcome = receive(socket.get());
    ASSERT_EQ(outcome, PacketOutcome::kPeerGone) << "the connection was not closed";
  }

  std::string directory_;
  TestSlab slab_{64};
  TestBorrower borrower_;
  std::unique_ptr<MemoryHost> host_;
};

TEST_F(ShmHostileTest, ThousandMalformedPacketsEndTheirConnectionsAndHarmNobody) {
  const uint64_t seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(::testing::Message() << "seed " << seed << " (--gtest_random_seed)");
  std::mt19937_64 random(seed);
  const auto transport = make_shm_transport();
  const auto channel = transport->connect(host_->address(), borrower_.options, {}).value();
  for (int i = 0; i < 50; ++i) attack(random);
  wait_for_peers(*host_, 1);
  const size_t descriptors = open_descriptors();
  const size_t resident = resident_bytes();
  for (size_t i = 0; i < 1000 && !HasFatalFailure(); ++i) {
    attack(random);
    const size_t page = i % 64;
    ASSERT_EQ(run(*channel, slab_.read(page, borrower_.page(0))), CompletionStatus::kOk);
    ASSERT_EQ(borrower_.page(0)[99], std::byte(page + 1));
  }
  wait_for_peers(*host_, 1);
  EXPECT_EQ(open_descriptors(), descriptors);
  if (kResidentBytesTell) {
    EXPECT_LT(resident_bytes(), resident + (size_t{4} << 20));
  }
  EXPECT_EQ(host_->counters().malformed, 1050U);
}

}  // namespace
}  // namespace farpage::rdma::shm
