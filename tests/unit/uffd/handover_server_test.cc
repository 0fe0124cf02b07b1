#include "uffd/handover_server.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/mapping.h"
#include "base/strong.h"

namespace farpage::uffd {
namespace {

using handover::AgentRing;
using handover::Hello;
using handover::Welcome;

class Handover : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = "/tmp/farpage-handover-XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    auto server = HandoverServer::listen(directory_ + "/socket");
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_.emplace(std::move(*server));
    acceptor_ = std::thread([this] { accepted_ = server_->accept(); });
  }
  void TearDown() override {
    server_->stop();
    if (acceptor_.joinable()) acceptor_.join();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  Fd connect() const {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (directory_ + "/socket").c_str());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  static void send_with(const Fd& socket, const void* bytes, size_t length,
                        const std::vector<int>& descriptors) {
    iovec vector{const_cast<void*>(bytes), length};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    EXPECT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(length));
  }
  static Welcome read_welcome(const Fd& socket) {
    Welcome welcome;
    EXPECT_EQ(::recv(socket.get(), &welcome, sizeof welcome, 0), ssize_t{sizeof welcome});
    return welcome;
  }
  static Hello good_hello() {
    Hello hello;
    hello.window_address = 0x10000000;
    hello.window_bytes = 1 << 20;
    std::strcpy(hello.program, "program");
    return hello;
  }

  std::string directory_;
  std::optional<HandoverServer> server_;
  std::thread acceptor_;
  Result<std::optional<HandedOver>> accepted_ = std::optional<HandedOver>();
  Fd any_descriptor_{::eventfd(0, EFD_CLOEXEC)};
  Fd ring_ = std::move(*create_memfd("ring", sizeof(AgentRing)));
};

TEST_F(Handover, TargetIsTakenInWithItsDescriptors) {
  const Fd socket = connect();
  const Hello hello = good_hello();
  send_with(socket, &hello, sizeof hello, {any_descriptor_.get(), ring_.get()});
  acceptor_.join();
  ASSERT_TRUE(accepted_.has_value() && accepted_->has_value());
  const HandedOver& target = **accepted_;
  EXPECT_EQ(target.pid, ::getpid());
  EXPECT_EQ(target.program, "program");
  EXPECT_EQ(target.window_bytes, uint64_t{1} << 20);
  EXPECT_TRUE(process_alive(target.pidfd));
  ASSERT_TRUE(welcome(target, 0, "").has_value());
  EXPECT_EQ(read_welcome(socket).status, 0);
}

TEST_F(Handover, BadHellosAreRefusedWithAReasonAndTheNextTargetIsServed) {
  struct Case {
    const char* reason;
    std::function<void(Hello&)> spoil;
    bool descriptors = true;
  };
  const std::vector<Case> cases = {
      {"not a farpage Hello", [](Hello& h) { h.magic = 1; }},
      {"different versions", [](Hello& h) { h.version = 99; }},
      {"whole pages", [](Hello& h) { h.window_bytes = 4097; }},
      {"whole pages", [](Hello& h) { h.window_bytes = 0; }},
      {"whole pages", [](Hello& h) { h.window_address = 12; }},
      {"two descriptors", [](Hello&) {}, false},
  };
  for (const Case& c : cases) {
    const Fd socket = connect();
    Hello hello = good_hello();
    c.spoil(hello);
    std::vector<int> descriptors;
    if (c.descriptors) descriptors = {any_descriptor_.get(), ring_.get()};
    send_with(socket, &hello, sizeof hello, descriptors);
    const Welcome answer = read_welcome(socket);
    EXPECT_NE(answer.status, 0);
    EXPECT_NE(std::string(answer.reason).find(c.reason), std::string::npos) << answer.reason;
  }
  const Fd socket = connect();
  const Hello hello = good_hello();
  send_with(socket, &hello, sizeof hello, {any_descriptor_.get(), ring_.get()});
  acceptor_.join();
  EXPECT_TRUE(accepted_.has_value() && accepted_->has_value());
}

TEST_F(Handover, RandomBytesNeverBecomeATarget) {
  constexpr uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 200; ++i) {
    const Fd socket = connect();
    std::vector<unsigned char> bytes(1 + random() % 300);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    send_with(socket, bytes.data(), bytes.size(), {});
    EXPECT_NE(read_welcome(socket).status, 0) << "seed " << kSeed << " round " << i;
  }
}

TEST_F(Handover, RequestsAreReadAndMalformedOnesRefused) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const Fd ours(pair[0]);
  Fd theirs(pair[1]);
  handover::Request request;
  request.address = 42;
  send_with(theirs, &request, sizeof request, {});
  const auto read = read_request(ours);
  ASSERT_TRUE(read.has_value() && read->has_value());
  EXPECT_EQ((*read)->address, 42U);
  send_with(theirs, &request, 3, {});
  EXPECT_FALSE(read_request(ours).has_value());
  theirs.reset();
  const auto end = read_request(ours);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->has_value());
}

TEST_F(Handover, AForkedChildIsKnownByTheKernelsWordAndGetsItsUserfaultfd) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const Fd ours(pair[0]);
  const Fd theirs(pair[1]);
  ASSERT_TRUE(expect_child(ours).has_value());
  const pid_t child = ::fork();
  if (child == 0) {
    const Hello hello = good_hello();  // its pid field is not believed
    send_with(theirs, &hello, sizeof hello, {ring_.get()});
    Welcome welcome;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec vector{&welcome, sizeof welcome};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const bool got = ::recvmsg(theirs.get(), &message, 0) == sizeof welcome;
    ::_exit(got && welcome.status == 0 && CMSG_FIRSTHDR(&message) != nullptr ? 0 : 1);
  }
  const auto hello = read_child_hello(ours);
  ASSERT_TRUE(hello.has_value() && hello->has_value());
  EXPECT_EQ((*hello)->pid, child);
  EXPECT_EQ((*hello)->window_bytes, uint64_t{1} << 20);
  EXPECT_TRUE(process_alive((*hello)->pidfd));
  EXPECT_TRUE(welcome_child(ours, any_descriptor_.get()).has_value());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Handover, ARequestBringsItsDescriptor) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const Fd ours(pair[0]);
  const Fd theirs(pair[1]);
  const handover::Request request;
  send_with(theirs, &request, sizeof request, {any_descriptor_.get()});
  send_with(theirs, &request, sizeof request, {});
  const auto with = read_request(ours);
  ASSERT_TRUE(with.has_value() && with->has_value());
  EXPECT_TRUE((*with)->descriptor.valid());
  const auto without = read_request(ours);
  ASSERT_TRUE(without.has_value() && without->has_value());
  EXPECT_FALSE((*without)->descriptor.valid());
}

TEST_F(Handover, StopEndsTheAccept) {
  server_->stop();
  acceptor_.join();
  ASSERT_TRUE(accepted_.has_value());
  EXPECT_FALSE(accepted_->has_value());
}

}  // namespace
}  // namespace farpage::uffd
