#include "rdma/shm/shm.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rdma/limits.h"
#include "rdma/shm/seqpacket.h"
#include "rdma/shm/shm_message.h"
#include "rdma/shm/shm_peers.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma {
namespace {

class ShmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "farpage-shm-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }
  void start() {
    host_ = make_shm_memory_host({socket_path()}).value();
    slab_.lend_on(*host_);
  }
  std::string socket_path() const { return directory_ + "/node.sock"; }
  std::unique_ptr<Channel> connect() {
    return transport_->connect(host_->address(), borrower_.options, {}).value();
  }
  // How often the text occurs in the list of this process's mappings.
  static size_t mappings_of(const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find(name) != line.npos;
    return count;
  }

  std::string directory_;
  TestSlab slab_{16};
  TestBorrower borrower_;
  std::unique_ptr<Transport> transport_ = make_shm_transport();
  std::unique_ptr<MemoryHost> host_;
};

TEST_F(ShmTest, AttachedSlabIsReadWithinPost) {
  start();
  const auto channel = connect();
  ASSERT_EQ(run(*channel, slab_.read(0, borrower_.page(0))), CompletionStatus::kOk);
  const Operation operation = slab_.read(5, borrower_.page(0));
  ASSERT_EQ(channel->post({&operation, 1}), 1U);
  EXPECT_EQ(borrower_.page(0)[0], std::byte{6});
  std::array<Completion, 1> done;
  EXPECT_EQ(channel->poll(done), 1U);
}

TEST_F(ShmTest, AddressOfAnotherKernelIsRefusedWithTheReason) {
  start();
  for (const std::string boot : {"", "6e7c1f2a-0000-4000-8000-000000000000"}) {
    const TransportAddress address{TransportKind::kShm, boot + ":" + socket_path()};
    const auto channel = transport_->connect(address, borrower_.options, {});
    ASSERT_FALSE(channel.has_value());
    EXPECT_EQ(channel.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(channel.error().context.find("another host"), std::string::npos);
  }
}

TEST_F(ShmTest, AddressOfAnotherFormIsRefused) {
  for (const char* text : {"", "/run/node.sock"}) {
    const auto channel = transport_->connect({TransportKind::kShm, text}, borrower_.options, {});
    ASSERT_FALSE(channel.has_value()) << text;
    EXPECT_EQ(channel.error().code, ErrorCode::kInvalid);
  }
}

TEST_F(ShmTest, DirectoryOpenToOthersIsRefused) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  const auto host = make_shm_memory_host({directory_ + "/node.sock"});
  ASSERT_FALSE(host.has_value());
  EXPECT_EQ(host.error().code, ErrorCode::kDenied);
  EXPECT_NE(host.error().context.find("0700"), std::string::npos);
}

TEST_F(ShmTest, MissingDirectoryIsMadeForThisUserAlone) {
  const std::string inner = directory_ + "/inner";
  const auto host = make_shm_memory_host({inner + "/node.sock"});
  ASSERT_TRUE(host.has_value()) << host.error().message();
  struct stat info {};
  ASSERT_EQ(::stat(inner.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(ShmTest, SocketOfALivingNodeIsNotTakenAndThatOfADeadOneIs) {
  start();
  const auto second = make_shm_memory_host({directory_ + "/node.sock"});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  // A node that was killed leaves its socket file behind.
  const std::string stale = directory_ + "/stale.sock";
  std::filesystem::rename(directory_ + "/node.sock", stale);
  host_.reset();
  EXPECT_TRUE(make_shm_memory_host({stale}).has_value());
  std::ofstream(directory_ + "/file") << "precious";
  EXPECT_FALSE(make_shm_memory_host({directory_ + "/file"}).has_value());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/file"));
}

TEST_F(ShmTest, PathTooLongForASocketIsRefusedByName) {
  const auto host = make_shm_memory_host({directory_ + "/" + std::string(108, 'x')});
  ASSERT_FALSE(host.has_value());
  EXPECT_NE(host.error().context.find("socket_path"), std::string::npos);
}

TEST_F(ShmTest, SlabWithoutAMemfdCannotBeExposed) {
  start();
  EXPECT_FALSE(host_->expose({slab_.memory.bytes(), -1}, {1}, 0).has_value());
  const Fd small = create_memfd("farpage-small", kPageBytes).value();
  EXPECT_FALSE(host_->expose({slab_.memory.bytes(), small.get()}, {1}, 0).has_value());
}

TEST_F(ShmTest, ChannelsOfOneTransportShareTheMappingAndGiveItBack) {
  TestSlab slab(16);
  slab.memfd = create_memfd("farpage-shared-slab", 16 * kPageBytes).value();
  start();
  slab.lend_on(*host_);
  {
    const auto first = connect();
    const auto second = connect();
    ASSERT_EQ(run(*first, slab.read(0, borrower_.page(0))), CompletionStatus::kOk);
    ASSERT_EQ(run(*second, slab.read(0, borrower_.page(0))), CompletionStatus::kOk);
    EXPECT_EQ(mappings_of("farpage-shared-slab"), 1U);
  }
  EXPECT_EQ(mappings_of("farpage-shared-slab"), 0U);
}

TEST_F(ShmTest, WithdrawnSlabIsUnmappedByItsNextUse) {
  TestSlab slab(16);
  slab.memfd = create_memfd("farpage-taken-slab", 16 * kPageBytes).value();
  start();
  slab.lend_on(*host_);
  const auto channel = connect();
  ASSERT_EQ(run(*channel, slab.read(0, borrower_.page(0))), CompletionStatus::kOk);
  host_->withdraw(slab.key);
  EXPECT_EQ(run(*channel, slab.read(0, borrower_.page(0))), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(mappings_of("farpage-taken-slab"), 0U);
}

TEST_F(ShmTest, ManySlabsPostedAtOnceAreAttachedOneAfterTheOther) {
  start();
  std::vector<std::unique_ptr<TestSlab>> slabs;
  std::vector<Operation> reads;
  for (size_t i = 0; i < 40; ++i) {
    slabs.push_back(std::make_unique<TestSlab>(1 + i % 3));
    slabs.back()->lend_on(*host_);
    reads.push_back(slabs.back()->read(i % 3, borrower_.page(i), i));
  }
  const auto channel = connect();
  ASSERT_EQ(channel->post(reads), reads.size());
  for (size_t i = 0; i < reads.size(); ++i)
    EXPECT_EQ(wait_one(*channel).status, CompletionStatus::kOk);
  for (size_t i = 0; i < reads.size(); ++i)
    EXPECT_EQ(borrower_.page(i)[0], std::byte(i % 3 + 1)) << i;
  host_.reset();  // before the slabs
}

// The other end of "PeerPage": a borrower that is stopped in the middle of a copy.
TEST(ShmPeers, WithdrawalWaitsForACopyUnderWayUpToItsGrace) {
  shm::ShmPeers peers;
  TestSlab slab(1);
  const RemoteKey key = peers.expose({slab.memory.bytes(), slab.memfd.get()}, {1}).value();
  const auto peer = peers.add(Fd()).value();
  const shm::Request request{shm::kProtocolVersion, shm::RequestKind::kAttach, key, {1}};
  shm::ShmPeers::Answer answer = peers.answer(*peer, request);
  ASSERT_EQ(answer.reply.status, shm::ReplyStatus::kOk);
  answer.use.release();
  EXPECT_EQ(peer->page().lease[answer.reply.slot].load(), answer.reply.lease);

  peer->page().copying.store(1);
  EXPECT_FALSE(peers.withdraw(key, Milliseconds(1)));
  EXPECT_EQ(peer->page().lease[answer.reply.slot].load(), 0U);
  EXPECT_EQ(peers.answer(*peer, request).reply.status, shm::ReplyStatus::kRemoteAccess);
}

TEST(ShmPeers, WithdrawalEndsWithTheCopyOrWithItsBorrower) {
  for (const bool dies : {false, true}) {
    shm::ShmPeers peers;
    TestSlab slab(1);
    const RemoteKey key = peers.expose({slab.memory.bytes(), slab.memfd.get()}, {1}).value();
    const auto peer = peers.add(Fd()).value();
    peers.answer(*peer, {shm::kProtocolVersion, shm::RequestKind::kAttach, key, {1}}).use.release();
    peer->page().copying.store(1);
    std::thread borrower([&] {
      while (peer->page().lease[0].load() != 0) std::this_thread::yield();
      if (dies) {
        peers.remove(peer);
      } else {
        peer->page().copying.store(2);
      }
    });
    EXPECT_TRUE(peers.withdraw(key, Seconds(60)));
    borrower.join();
  }
}

TEST(ShmPeers, SlotsRunOutAndComeBack) {
  shm::ShmPeers peers;
  TestSlab slab(1);
  const auto peer = peers.add(Fd()).value();
  const auto attach = [&](RemoteKey key) {
    return peers.answer(*peer, {shm::kProtocolVersion, shm::RequestKind::kAttach, key, {1}})
        .reply.status;
  };
  std::vector<RemoteKey> keys;
  for (uint32_t i = 0; i <= shm::kMaxAttachments; ++i)
    keys.push_back(peers.expose({slab.memory.bytes(), slab.memfd.get()}, {1}).value());
  for (uint32_t i = 0; i < shm::kMaxAttachments; ++i)
    ASSERT_EQ(attach(keys[i]), shm::ReplyStatus::kOk);
  EXPECT_EQ(attach(keys[0]), shm::ReplyStatus::kOk) << "again";
  EXPECT_EQ(attach(keys.back()), shm::ReplyStatus::kExhausted);
  EXPECT_TRUE(peers.withdraw(keys[5], Seconds(1)));
  EXPECT_EQ(attach(keys.back()), shm::ReplyStatus::kOk);
}

// A borrower that speaks the protocol and can send any request.
class RawShmBorrower {
 public:
  explicit RawShmBorrower(const std::string& path) : socket_(shm::connect_at(path).value()) {
    EXPECT_TRUE(ask({shm::kProtocolVersion, shm::RequestKind::kHello, {}, {}}).has_value());
  }
  // The reply's status; none when the host hung up.
  std::optional<shm::ReplyStatus> ask(const shm::Request& request) {
    if (shm::send_packet(socket_.get(), encode(request), -1) != shm::PacketOutcome::kDone)
      return std::nullopt;
    std::array<std::byte, shm::kReplyBytes> bytes{};
    for (;;) {
      const shm::ReceivedPacket packet = shm::receive_packet(socket_.get(), bytes);
      if (packet.outcome == shm::PacketOutcome::kPeerGone) return std::nullopt;
      if (packet.outcome == shm::PacketOutcome::kDone)
        return shm::decode_reply(std::span(bytes).first(packet.bytes))->status;
      pollfd entry{socket_.get(), POLLIN, 0};
      (void)::poll(&entry, 1, 10'000);
    }
  }
  // Attaches with a new wrong key each time until the host hangs up; returns how many it refused.
  uint32_t guess_until_hung_up(const TestSlab& slab, uint64_t& tries) {
    for (uint32_t refused = 0;; ++refused) {
      RemoteKey key = slab.key;
      key.secret[0] ^= ++tries;
      const auto status =
          ask({shm::kProtocolVersion, shm::RequestKind::kAttach, key, slab.generation});
      if (!status) return refused;
      EXPECT_EQ(*status, shm::ReplyStatus::kRemoteAccess);
    }
  }

 private:
  Fd socket_;
};

TEST_F(ShmTest, BorrowerThatGuessesKeysIsSlowedDownAndDisturbsNobody) {
  start();
  const auto channel = connect();  // stays usable
  Instant first_guess{0};
  uint64_t tries = 0;
  for (uint64_t connection = 1; connection <= 4; ++connection) {
    RawShmBorrower guesser(socket_path());
    if (connection > 1) {
      // The penalty began after the previous connection's first guess.
      EXPECT_GE(SteadyClock::read() - first_guess, kGuessPenalty) << "of connection " << connection;
    }
    first_guess = SteadyClock::read();
    EXPECT_EQ(guesser.guess_until_hung_up(slab_, tries), kMaxUnknownKeys);
    ASSERT_EQ(run(*channel, slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
  }
  EXPECT_EQ(run(*connect(), slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(ShmTest, ThousandsOfWrongKeysOnManyConnectionsOpenNothing) {
  start();
  std::vector<std::unique_ptr<RawShmBorrower>> guessers;
  for (int i = 0; i < 200; ++i) guessers.push_back(std::make_unique<RawShmBorrower>(socket_path()));
  uint64_t tries = 0;
  for (const auto& guesser : guessers)
    EXPECT_EQ(guesser->guess_until_hung_up(slab_, tries), kMaxUnknownKeys);
  EXPECT_EQ(run(*connect(), slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(ShmTest, BorrowerThatIsHeldStopsNeitherAnotherOneNorTheEndOfTheHost) {
  start();
  uint64_t tries = 0;
  RawShmBorrower(socket_path()).guess_until_hung_up(slab_, tries);
  const Fd held = shm::connect_at(socket_path()).value();
  EXPECT_EQ(run(*connect(), slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
  host_.reset();
}

TEST(ShmPeers, PeerThatGuessesKeysIsFoundAndOneWithAWithdrawnKeyIsNot) {
  shm::ShmPeers peers;
  TestSlab slab(1);
  const auto peer = peers.add(Fd()).value();
  const auto attach = [&](const RemoteKey& key) {
    return peers.answer(*peer, {shm::kProtocolVersion, shm::RequestKind::kAttach, key, {1}});
  };
  const RemoteKey withdrawn = peers.expose({slab.memory.bytes(), slab.memfd.get()}, {1}).value();
  const RemoteKey lent = peers.expose({slab.memory.bytes(), slab.memfd.get()}, {1}).value();
  EXPECT_TRUE(peers.withdraw(withdrawn, Seconds(1)));
  for (uint32_t i = 0; i < 10 * kMaxUnknownKeys; ++i) {
    const auto answer = attach(withdrawn);
    EXPECT_EQ(answer.reply.status, shm::ReplyStatus::kRemoteAccess);
    ASSERT_FALSE(answer.guesses);
  }
  RemoteKey guess = lent;
  guess.secret[0] ^= 1;
  for (uint32_t i = 0; i < 10 * kMaxUnknownKeys; ++i) ASSERT_FALSE(attach(guess).guesses);
  for (uint32_t i = 1; i <= kMaxUnknownKeys; ++i) {
    guess = lent;
    guess.secret[0] ^= i;
    const auto answer = attach(guess);
    EXPECT_EQ(answer.reply.status, shm::ReplyStatus::kRemoteAccess);
    EXPECT_EQ(answer.guesses, i == kMaxUnknownKeys);
  }
  EXPECT_EQ(attach(lent).reply.status, shm::ReplyStatus::kOk);
}

}  // namespace
}  // namespace farpage::rdma
