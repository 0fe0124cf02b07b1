#include "base/unix_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/fd.h"

namespace farpage {
namespace {

TEST(UnixAddress, HoldsAPathUpToTheLimitWithItsEnd) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kMaxUnixPathBytes}) {
    const std::string path(bytes, 'p');
    const std::optional<sockaddr_un> address = unix_address(path);
    ASSERT_TRUE(address);
    EXPECT_EQ(address->sun_family, AF_UNIX);
    EXPECT_EQ(std::string(address->sun_path), path);
  }
  EXPECT_FALSE(unix_address(std::string(kMaxUnixPathBytes + 1, 'p')));
}

TEST(Descriptors, TravelWithBytes) {
  std::array<int, 2> pair{-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const Fd one(pair[0]);
  Fd other(pair[1]);
  const std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 8> got{};
  EXPECT_EQ(send_with_descriptor(one.get(), sent, STDERR_FILENO), 3);
  const ReceivedBytes with = receive_with_descriptor(other.get(), got);
  EXPECT_EQ(with.count, 3);
  EXPECT_EQ(got[2], std::byte{3});
  EXPECT_TRUE(with.descriptor.valid());
  EXPECT_NE(with.descriptor.get(), STDERR_FILENO);
  EXPECT_EQ(send_with_descriptor(one.get(), sent, -1), 3);
  EXPECT_FALSE(receive_with_descriptor(other.get(), got).descriptor.valid());
  EXPECT_EQ(receive_with_descriptor(other.get(), got, MSG_DONTWAIT).count, -1);
  EXPECT_EQ(errno, EAGAIN);
  other.reset();
  EXPECT_EQ(send_with_descriptor(one.get(), sent, -1), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(receive_with_descriptor(one.get(), got).count, 0);
}

TEST(PeerCredentials, OfASocketPairAreThisProcess) {
  std::array<int, 2> pair{-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  const Fd one(pair[0]);
  const Fd other(pair[1]);
  const Result<ucred> peer = peer_credentials(one.get());
  ASSERT_TRUE(peer) << peer.error().message();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
}

TEST(PeerCredentials, OfNoSocketAreAFailure) {
  const Result<ucred> peer = peer_credentials(-1);
  ASSERT_FALSE(peer);
  EXPECT_EQ(peer.error().context, "SO_PEERCRED");
  EXPECT_EQ(peer.error().sys_errno, EBADF);
}

}  // namespace
}  // namespace farpage
