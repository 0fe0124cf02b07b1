#include "uffd/handover_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/mapping.h"
#include "base/pidfd.h"
#include "base/strong.h"
#include "tests/unix_message.h"
#include "uffd/children_call.h"
#include "uffd/resize_call.h"

namespace farpage::uffd {
namespace {

using handover::AgentRing;
using handover::Hello;
using handover::Welcome;
using test::send_with;

class Handover : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = "/tmp/farpage-handover-XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    auto server = HandoverServer::listen(directory_ + "/socket");
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_.emplace(std::move(*server));
    accept_next();
  }
  void TearDown() override {
    const uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), ssize_t{sizeof one});
    if (acceptor_.joinable()) acceptor_.join();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Takes in connections until one is not refused.
  void accept_next() {
    acceptor_ = std::thread([this] { accepted_ = next_arrival(*server_, stop_); });
  }
  static Result<std::optional<Arrival>> next_arrival(const HandoverServer& server, const Fd& stop) {
    while (true) {
      std::array<pollfd, 2> polls{pollfd{server.descriptor(), POLLIN, 0},
                                  pollfd{stop.get(), POLLIN, 0}};
      (void)::poll(polls.data(), polls.size(), -1);
      if (polls[1].revents != 0) return std::optional<Arrival>();
      Fd socket = server.accept();
      if (!socket.valid()) continue;
      Result<Arrival> arrival = receive_arrival(std::move(socket), server.user());
      if (arrival) return std::optional(std::move(*arrival));
    }
  }

  Fd connect() const {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (directory_ + "/socket").c_str());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
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
  // Null unless the acceptor has returned a Kind.
  template <typename Kind>
  const Kind* accepted() const {
    return accepted_.has_value() && accepted_->has_value() ? std::get_if<Kind>(&**accepted_)
                                                           : nullptr;
  }

  Result<std::optional<Arrival>> accepted_ = std::optional<Arrival>();
  const Fd stop_{::eventfd(0, EFD_CLOEXEC)};
  Fd any_descriptor_{::eventfd(0, EFD_CLOEXEC)};
  Fd ring_ = std::move(*create_memfd("ring", sizeof(AgentRing)));
};

TEST_F(Handover, TargetIsTakenInWithItsDescriptors) {
  const Fd socket = connect();
  const Hello hello = good_hello();
  send_with(socket, &hello, sizeof hello, {any_descriptor_.get(), ring_.get()});
  acceptor_.join();
  ASSERT_NE(accepted<HandedOver>(), nullptr);
  const HandedOver& target = *accepted<HandedOver>();
  EXPECT_EQ(target.pid, ::getpid());
  EXPECT_EQ(target.program, "program");
  EXPECT_EQ(target.window_bytes, uint64_t{1} << 20);
  EXPECT_FALSE(has_ended(target.pidfd.get()));
  ASSERT_TRUE(welcome(target.socket, 0, "").has_value());
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
  EXPECT_NE(accepted<HandedOver>(), nullptr);
}

TEST_F(Handover, AResizeIsTakenInAndItsCallerHearsWhatHasChanged) {
  auto socket = connect_to_pager(directory_ + "/socket", ::getpid());
  ASSERT_TRUE(socket.has_value()) << socket.error().message();
  Result<ResizedProcesses> heard = ResizedProcesses();
  std::thread caller([&] { heard = resize(*socket, 12345678); });
  acceptor_.join();
  ASSERT_NE(accepted<ResizeCall>(), nullptr);
  EXPECT_EQ(accepted<ResizeCall>()->local_bytes, 12345678U);
  ResizedProcesses changes(2);
  changes[0].pid = 7;
  changes[1].before_bytes = 1;
  changes[1].after_bytes = 2;
  std::strcpy(changes[1].program, "program");
  EXPECT_TRUE(answer(*accepted<ResizeCall>(), changes).has_value());
  accepted_ = std::optional<Arrival>();  // closes the connection
  caller.join();
  ASSERT_TRUE(heard.has_value()) << heard.error().message();
  ASSERT_EQ(heard->size(), 2U);
  EXPECT_EQ(heard->at(0).pid, 7);
  EXPECT_EQ(heard->at(1).before_bytes, 1U);
  EXPECT_EQ(heard->at(1).after_bytes, 2U);
  EXPECT_STREQ(heard->at(1).program, "program");
}

TEST_F(Handover, ARefusedResizeComesBackAsItsReason) {
  const struct {
    ErrorCode code;
    const char* text;
  } cases[] = {{ErrorCode::kInvalid, "local: too little"}, {ErrorCode::kConflict, "it is pinned"}};
  for (const auto& c : cases) {
    auto socket = connect_to_pager(directory_ + "/socket", ::getpid());
    ASSERT_TRUE(socket.has_value()) << socket.error().message();
    Result<ResizedProcesses> heard = ResizedProcesses();
    std::thread caller([&] { heard = resize(*socket, 1); });
    acceptor_.join();
    ASSERT_NE(accepted<ResizeCall>(), nullptr);
    EXPECT_TRUE(answer(*accepted<ResizeCall>(), fail(c.code, c.text)).has_value());
    caller.join();
    ASSERT_FALSE(heard.has_value());
    EXPECT_EQ(heard.error().code, c.code);
    EXPECT_EQ(heard.error().context, c.text);
    accepted_ = std::optional<Arrival>();
    accept_next();
  }
}

TEST_F(Handover, BadResizesAreRefusedWithAReason) {
  handover::Resize resize;
  resize.version = 99;
  const Fd socket = connect();
  send_with(socket, &resize, sizeof resize, {});
  const Welcome answer = read_welcome(socket);
  EXPECT_NE(answer.status, 0);
  EXPECT_NE(std::string(answer.reason).find("another version"), std::string::npos);
  for (const size_t bytes : {sizeof resize - 1, sizeof(uint32_t)}) {
    const Fd shorter = connect();
    const handover::Resize good;
    send_with(shorter, &good, bytes, {});
    EXPECT_NE(read_welcome(shorter).status, 0);
  }
  Hello long_one = good_hello();
  long_one.magic = handover::kResizeMagic;
  const Fd longer = connect();
  send_with(longer, &long_one, sizeof long_one, {any_descriptor_.get(), ring_.get()});
  EXPECT_NE(read_welcome(longer).status, 0);
}

TEST_F(Handover, ACallForChildrenIsAnsweredWithTheirUserfaultfds) {
  Result<std::vector<FoundChild>> heard = std::vector<FoundChild>();
  std::thread caller([&] { heard = ask_children(directory_ + "/socket"); });
  acceptor_.join();
  ASSERT_NE(accepted<ChildrenCall>(), nullptr);
  std::vector<AgentlessChild> children(2);
  const std::array<Fd, 2> descriptors{Fd(::eventfd(3, EFD_CLOEXEC)), Fd(::eventfd(4, EFD_CLOEXEC))};
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].number = 100 + i;
    children[i].features = 7;
    children[i].age_ns = 1'000'000'000;
    children[i].userfaultfd = descriptors[i].get();
  }
  EXPECT_TRUE(answer(*accepted<ChildrenCall>(), children).has_value());
  accepted_ = std::optional<Arrival>();  // closes the connection
  caller.join();
  ASSERT_TRUE(heard.has_value()) << heard.error().message();
  ASSERT_EQ(heard->size(), 2U);
  for (size_t i = 0; i < children.size(); ++i) {
    EXPECT_EQ(heard->at(i).number, 100 + i);
    EXPECT_EQ(heard->at(i).features, 7U);
    EXPECT_EQ(heard->at(i).age_ns, 1'000'000'000);
    uint64_t value = 0;
    EXPECT_EQ(::read(heard->at(i).descriptor.get(), &value, sizeof value), ssize_t{sizeof value});
    EXPECT_EQ(value, 3 + i);
  }
}

TEST_F(Handover, ACallForChildrenOfAnotherVersionIsRefused) {
  handover::AskChildren question;
  question.version = 99;
  const Fd socket = connect();
  send_with(socket, &question, sizeof question, {});
  const Welcome answer = read_welcome(socket);
  EXPECT_NE(answer.status, 0);
  EXPECT_NE(std::string(answer.reason).find("another version"), std::string::npos);
}

// A peer that answers with invalid bytes, or not at all.
TEST_F(Handover, AnswersThatAreNotOursEndTheCallForChildren) {
  const std::string path = directory_ + "/stranger";
  auto stranger = HandoverServer::listen(path);
  ASSERT_TRUE(stranger.has_value());
  const auto bytes_of = [](const auto& message) {
    return std::string(reinterpret_cast<const char*>(&message), sizeof message);
  };
  Welcome refusal;
  refusal.status = EBUSY;
  std::strcpy(refusal.reason, "not now");
  const handover::AgentlessChild without_descriptor;
  const struct {
    ErrorCode code;
    std::vector<std::string> messages;
  } answers[] = {{ErrorCode::kUnavailable, {}},
                 {ErrorCode::kIo, {"no"}},
                 {ErrorCode::kConflict, {bytes_of(refusal)}},
                 {ErrorCode::kIo, {bytes_of(Welcome()), "no"}},
                 {ErrorCode::kIo, {bytes_of(Welcome()), bytes_of(without_descriptor)}}};
  for (const auto& [code, messages] : answers) {
    Result<std::vector<FoundChild>> heard = std::vector<FoundChild>();
    std::thread caller([&, &path = path] { heard = ask_children(path); });
    auto call = next_arrival(*stranger, stop_);
    ASSERT_TRUE(call.has_value() && call->has_value());
    for (const std::string& message : messages)
      send_with(std::get<ChildrenCall>(**call).socket, message.data(), message.size(), {});
    call = std::optional<Arrival>();
    caller.join();
    ASSERT_FALSE(heard.has_value());
    EXPECT_EQ(heard.error().code, code);
  }
  EXPECT_FALSE(ask_children(directory_ + "/nobody").has_value());
}

TEST_F(Handover, WhoIsNotTheExpectedProcessIsNotAskedForAResize) {
  const auto other = connect_to_pager(directory_ + "/socket", ::getppid());
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kNotFound);
  const auto nobody = connect_to_pager(directory_ + "/nobody", ::getpid());
  ASSERT_FALSE(nobody.has_value());
  EXPECT_EQ(nobody.error().code, ErrorCode::kNotFound);
}

// A peer that answers a Resize with invalid bytes.
TEST_F(Handover, AnswersThatAreNotOursEndTheResize) {
  const std::string path = directory_ + "/stranger";
  auto stranger = HandoverServer::listen(path);
  ASSERT_TRUE(stranger.has_value());
  handover::ResizedProcess bad_process;
  bad_process.magic = 1;
  const Welcome good;
  const std::string good_bytes(reinterpret_cast<const char*>(&good), sizeof good);
  const std::string bad_bytes(reinterpret_cast<const char*>(&bad_process), sizeof bad_process);
  const struct {
    ErrorCode code;
    std::vector<std::string> messages;
  } answers[] = {{ErrorCode::kUnavailable, {}},
                 {ErrorCode::kUnsupported, {"no"}},
                 {ErrorCode::kUnsupported, {good_bytes, "no"}},
                 {ErrorCode::kUnsupported, {good_bytes, bad_bytes}}};
  for (const auto& [code, messages] : answers) {
    auto socket = connect_to_pager(path, ::getpid());
    ASSERT_TRUE(socket.has_value());
    Result<ResizedProcesses> heard = ResizedProcesses();
    std::thread caller([&] { heard = resize(*socket, 1); });
    auto call = next_arrival(*stranger, stop_);
    ASSERT_TRUE(call.has_value() && call->has_value());
    for (const std::string& message : messages)
      send_with(std::get<ResizeCall>(**call).socket, message.data(), message.size(), {});
    call = std::optional<Arrival>();
    caller.join();
    ASSERT_FALSE(heard.has_value());
    EXPECT_EQ(heard.error().code, code);
  }
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
    const Hello hello = good_hello();  // the server ignores its pid field
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
  EXPECT_FALSE(has_ended((*hello)->pidfd.get()));
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

TEST_F(Handover, AcceptNeverWaits) {
  auto quiet = HandoverServer::listen(directory_ + "/quiet");
  ASSERT_TRUE(quiet.has_value());
  EXPECT_FALSE(quiet->accept().valid());
}

}  // namespace
}  // namespace farpage::uffd
