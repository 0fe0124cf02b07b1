#include "snapshot/snapshot_state.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "base/unix_socket.h"

namespace farpage::snapshot {
namespace {

class SnapshotStateTest : public ::testing::Test {
 protected:
  SnapshotState state() { return std::move(*SnapshotState::create(*store_)); }
  // What a successor reads.
  void take_over() {
    const int log = store_->release_log();
    store_->release_ranges();
    store_ = std::move(*StateStore::take_over(log));
  }

  std::unique_ptr<StateStore> store_ = std::move(*StateStore::create(size_t{1} << 20));
};

TEST_F(SnapshotStateTest, RecordsAreReadAsTheyWerePut) {
  const SessionRecord session{.image = "vm",
                              .pid = 17,
                              .pidfd = 100,
                              .userfaultfd = 101,
                              .socket = 102,
                              .lifeline = {103, 104, 105},
                              .regions = {{4194304, 2097152, 0, kHugePageBytes},
                                          {uint64_t{1} << 46, 4194304, 2097152, kHugePageBytes}},
                              .target = 12,
                              .is_served = true,
                              .ring = 106,
                              .agent_lifeline = 107,
                              .staging_address = uint64_t{1} << 40};
  EXPECT_EQ(*state().next_session(), 1U);
  ASSERT_TRUE(state().put_session(1, session).has_value());
  ASSERT_TRUE(state().put_listener(7, {.descriptor = 99, .path = "/x", .image = "vm"}).has_value());
  EXPECT_EQ(*state().reader("first"), "first");
  const Mapping memory = std::move(*state().session_memory(1, kPageBytes));
  memory.data()[5] = std::byte{9};
  take_over();
  EXPECT_EQ(*state().next_session(), 2U);
  EXPECT_EQ(*state().reader("second"), "first");
  EXPECT_FALSE(state().is_stopping());
  const auto sessions = state().sessions();
  ASSERT_TRUE(sessions.has_value());
  ASSERT_EQ(sessions->size(), 1U);
  const SessionRecord& read = sessions->at(1);
  EXPECT_EQ(read.image, session.image);
  EXPECT_EQ(read.pid, session.pid);
  EXPECT_EQ(read.lifeline, session.lifeline);
  EXPECT_EQ(read.regions, session.regions);
  EXPECT_EQ(read.target, session.target);
  EXPECT_TRUE(read.is_served);
  EXPECT_EQ(read.staging_address, session.staging_address);
  EXPECT_EQ(state().listeners()->at(7).path, "/x");
  EXPECT_EQ(std::move(*state().session_memory(1, kPageBytes)).data()[5], std::byte{9});
  const auto descriptors = *state().descriptors();
  for (int descriptor = 99; descriptor <= 107; ++descriptor)
    EXPECT_TRUE(descriptors.contains(descriptor)) << descriptor;
  state().erase_session(1);
  EXPECT_TRUE(state().sessions()->empty());
  EXPECT_FALSE(state().descriptors()->contains(101));
  EXPECT_EQ(std::move(*state().session_memory(1, kPageBytes)).data()[5], std::byte{0});
  ASSERT_TRUE(state().put_stopping().has_value());
  EXPECT_TRUE(state().is_stopping());
}

TEST_F(SnapshotStateTest, StateOfAnotherBuildIsRefused) {
  ASSERT_TRUE(store_->put("snapshot/version", "0").has_value());
  const auto refused = SnapshotState::create(*store_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

TEST_F(SnapshotStateTest, SocketsThatWereAcceptedAndAreInNoRecordAreFound) {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("farpage-state-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/vm.sock";
  const sockaddr_un address = *unix_address(path);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), where, sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  std::vector<Fd> vmms;
  std::vector<Fd> accepted;
  for (int i = 0; i < 2; ++i) {
    vmms.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(vmms.back().get(), where, sizeof address), 0);
    accepted.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  ASSERT_TRUE(state().put_session(1, {.image = "vm", .socket = accepted[0].get()}).has_value());
  EXPECT_EQ(*state().accepted_at(path), std::vector<int>{accepted[1].get()});
  EXPECT_FALSE(state().descriptors()->contains(accepted[1].get())) << "nobody listens there";
  ASSERT_TRUE(state().put_listener(1, {.descriptor = -1, .path = path, .image = "vm"}).has_value());
  EXPECT_TRUE(state().descriptors()->contains(accepted[1].get()));
  EXPECT_FALSE(state().descriptors()->contains(vmms[1].get()));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace farpage::snapshot
