#include "serve/host_pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <filesystem>
#include <future>
#include <thread>

#include "base/mapping.h"
#include "base/unix_socket.h"
#include "serve/pager_session.h"
#include "tests/unix_message.h"
#include "uffd/children_call.h"
#include "uffd/handover_server.h"

namespace farpage::serve {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

// No target gets far enough to need one.
class NoEngine final : public pager::Engine {
 public:
  Result<std::unique_ptr<pager::Pager>> add(const pager::TargetOptions&,
                                            std::unique_ptr<uffd::AddressSpace>, Milliseconds,
                                            pager::OnChild) override {
    return fail(ErrorCode::kUnsupported, "no engine");
  }
  Result<std::unique_ptr<pager::Pager>> adopt(const pager::TargetOptions&, pager::Inheritance&,
                                              pager::OnChild) override {
    return fail(ErrorCode::kUnsupported, "no engine");
  }
  Result<std::unique_ptr<pager::Pager>> restore(
      const pager::TargetOptions&, std::unique_ptr<uffd::AddressSpace>&,
      std::shared_ptr<const pager::StoredPages>) override {
    return fail(ErrorCode::kUnsupported, "no engine");
  }
  Result<std::unique_ptr<pager::Pager>> resume(const pager::ResumeOptions&,
                                               std::unique_ptr<uffd::AddressSpace>&,
                                               pager::OnChild) override {
    return fail(ErrorCode::kUnsupported, "no engine");
  }
  bool can_resume(uint64_t) override { return false; }
  void end_succession(const std::set<uint64_t>&) override {}
};

// The pager has a control thread of its own.
class HostPagerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = "/tmp/farpage-host-pager-XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    path_ = directory_ + "/pager.sock";
    options_.local_bytes = 64 * kMib;
    thread_ = std::jthread([this] { control_.run(); });
    const auto pager = listen();
    ASSERT_TRUE(pager) << pager.error().message();
  }
  void TearDown() override {
    control_.stop();
    thread_.join();
    pager_.reset();
    std::filesystem::remove_all(directory_);
  }

  Status listen() {
    Status made;
    on_control([&] {
      auto pager = HostPager::listen(control_, path_, engine_, pager_options(), no_state_);
      if (pager) {
        pager_ = std::move(*pager);
      } else {
        made = tl::unexpected(pager.error());
      }
    });
    return made;
  }
  template <typename Call>
  void on_control(Call&& call) {
    std::promise<void> done;
    boost::asio::post(control_, [&] {
      call();
      done.set_value();
    });
    done.get_future().wait();
  }
  HostPagerOptions pager_options() const {
    return {.pager = options_, .pool_bytes = options_.local_bytes};
  }
  bool has_runs() {
    bool runs = false;
    on_control([&] { runs = pager_->has_runs(); });
    return runs;
  }
  void await_no_runs() {
    while (has_runs()) std::this_thread::yield();
  }

  PagerSession connect() const {
    auto session = PagerSession::connect(path_);
    EXPECT_TRUE(session) << session.error().message();
    return std::move(*session);
  }
  uffd::HandoverServer handover() {
    auto server =
        uffd::HandoverServer::listen(directory_ + "/handover-" + std::to_string(++sockets_));
    EXPECT_TRUE(server);
    return std::move(*server);
  }
  // A connection without PagerSession's manners.
  Fd plain() const {
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = unix_address(path_);
    EXPECT_EQ(
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address), 0);
    return socket;
  }
  static void send(const Fd& socket, std::string_view text, const std::vector<int>& fds = {}) {
    test::send_with(socket, text.data(), text.size(), fds);
  }
  static std::string line_from(const Fd& socket) {
    std::string line;
    char c = 0;
    while (::recv(socket.get(), &c, 1, 0) == 1 && c != '\n') line += c;
    return line;
  }

  std::string directory_;
  std::string path_;
  int sockets_ = 0;
  pager::PagerOptions options_;
  NoEngine engine_;
  const ServedState no_state_ = std::move(*ServedState::create(nullptr));
  boost::asio::io_context control_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      control_.get_executor()};
  std::unique_ptr<HostPager> pager_;
  std::jthread thread_;
};

BeginRun of(uint64_t local_bytes) {
  return {.program = "program", .local_bytes = local_bytes, .fork = pager::ForkMode::kShare};
}

TEST_F(HostPagerTest, ARunWithoutTargetsEndsAtOnce) {
  const uffd::HandoverServer server = handover();
  PagerSession session = connect();
  ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  const auto status = connect().status();
  ASSERT_TRUE(status);
  ASSERT_EQ(status->runs.size(), 1U);
  EXPECT_EQ(status->runs[0].program, "program");
  EXPECT_EQ(status->runs[0].pid, ::getpid());
  EXPECT_EQ(status->runs[0].local_bytes, 16 * kMib);
  const auto report = session.finish(0);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->memory.local_bytes, 16 * kMib);
  EXPECT_FALSE(has_runs());
}

TEST_F(HostPagerTest, BudgetsTogetherAreThePagers) {
  const uffd::HandoverServer server = handover();
  PagerSession first = connect();
  PagerSession second = connect();
  ASSERT_TRUE(first.begin(of(48 * kMib), server.descriptor()));
  const Status refused = second.begin(of(17 * kMib), server.descriptor());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message().find("16M of it is left"), std::string::npos);
  EXPECT_TRUE(second.begin(of(16 * kMib), server.descriptor())) << "all of it may be used";
  ASSERT_TRUE(first.finish(0));
  PagerSession third = connect();
  EXPECT_TRUE(third.begin(of(48 * kMib), server.descriptor()));
}

TEST_F(HostPagerTest, AConnectionThatIsClosedEndsItsRun) {
  const uffd::HandoverServer server = handover();
  {
    PagerSession session = connect();
    ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  }
  await_no_runs();
}

TEST_F(HostPagerTest, OneProgramAConnection) {
  const uffd::HandoverServer server = handover();
  PagerSession session = connect();
  EXPECT_EQ(session.finish(0).error().code, ErrorCode::kConflict);
  EXPECT_EQ(session.report().error().code, ErrorCode::kConflict);
  ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  // Asked twice, because an engine that was killed may have read it.
  ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  EXPECT_EQ(session.begin(of(8 * kMib), server.descriptor()).error().code, ErrorCode::kConflict);
  const auto status = session.status();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->runs.size(), 1U);
  const auto report = session.report();
  ASSERT_TRUE(report);
  EXPECT_NE(report->json.find("\"targets\": []"), std::string::npos) << report->json;
}

TEST_F(HostPagerTest, ADescriptorThatIsNoHandoverSocketIsRefused) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const Fd read(pipe[0]);
  const Fd write(pipe[1]);
  const Fd unbound(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Fd stream(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const int descriptor : {-1, read.get(), unbound.get(), stream.get()}) {
    PagerSession session = connect();
    const Status refused = session.begin(of(16 * kMib), descriptor);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid) << refused.error().message();
  }
  EXPECT_FALSE(has_runs());
}

TEST_F(HostPagerTest, SeveralLinesAreAnsweredInTheirOrder) {
  const Fd socket = plain();
  const std::string ask = to_line(PagerRequest(AskStatus{}));
  send(socket, "nonsense\n" + ask + "{}\n" + ask.substr(0, 5));
  EXPECT_NE(line_from(socket).find("not a JSON object"), std::string::npos);
  EXPECT_TRUE(status_from_line(line_from(socket)));
  EXPECT_NE(line_from(socket).find("version"), std::string::npos);
  send(socket, ask.substr(5));
  EXPECT_TRUE(status_from_line(line_from(socket)));
}

TEST_F(HostPagerTest, DescriptorsThatNobodyAskedForAreClosed) {
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++count;
    return count;
  };
  const size_t before = descriptors();
  {
    const Fd socket = plain();
    const std::string ask = to_line(PagerRequest(AskStatus{}));
    for (int i = 0; i < 20; ++i) {
      send(socket, ask, {socket.get(), socket.get(), socket.get()});
      EXPECT_TRUE(status_from_line(line_from(socket)));
    }
  }
  while (descriptors() > before) std::this_thread::yield();
}

TEST_F(HostPagerTest, ALongRequestEndsItsConnectionAndItsRun) {
  const uffd::HandoverServer server = handover();
  const Fd socket = plain();
  send(socket, to_line(PagerRequest(of(16 * kMib))), {server.descriptor()});
  EXPECT_TRUE(accepted_from_line(line_from(socket)));
  EXPECT_TRUE(has_runs());
  const std::string part(1024, 'x');
  while (::send(socket.get(), part.data(), part.size(), MSG_NOSIGNAL) > 0) {
  }
  EXPECT_EQ(line_from(socket), "");
  await_no_runs();
}

TEST_F(HostPagerTest, AConnectionToTheHandoverThatSaysNothingMayOutliveItsRun) {
  const uffd::HandoverServer server = handover();
  PagerSession session = connect();
  ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  Fd silent(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto address = unix_address(server.path());
  ASSERT_EQ(::connect(silent.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
            0);
  std::jthread speaks([&silent] {
    std::this_thread::sleep_for(Milliseconds(50));
    EXPECT_EQ(::send(silent.get(), "?", 1, MSG_NOSIGNAL), 1);
  });
  EXPECT_TRUE(session.finish(0)) << "it waits for what the connection says";
  await_no_runs();
}

TEST_F(HostPagerTest, AnAgentOfAChildThatIsNotServedIsRefused) {
  const uffd::HandoverServer server = handover();
  PagerSession session = connect();
  ASSERT_TRUE(session.begin(of(16 * kMib), server.descriptor()));
  const auto children = uffd::ask_children(server.path());
  ASSERT_TRUE(children) << children.error().message();
  EXPECT_TRUE(children->empty());
  const Fd socket = std::move(*connect_to_path(server.path(), SOCK_SEQPACKET));
  const Fd ring = std::move(*create_memfd("ring", sizeof(uffd::handover::AgentRing)));
  uffd::handover::Hello hello;
  hello.window_address = 1 << 30;
  hello.window_bytes = 1 << 21;
  hello.attached_pid = ::getpid();
  hello.child = 999;
  test::send_with(socket, &hello, sizeof hello, {ring.get(), ring.get()});
  uffd::handover::Welcome welcome;
  ASSERT_EQ(::recv(socket.get(), &welcome, sizeof welcome, 0), ssize_t{sizeof welcome});
  EXPECT_EQ(welcome.status, ESRCH);
  EXPECT_STREQ(welcome.reason, "that child has ended, or has an agent");
  EXPECT_TRUE(session.finish(0));
}

TEST_F(HostPagerTest, APagerThatIsClosedBeginsNothing) {
  const uffd::HandoverServer server = handover();
  PagerSession early = connect();
  PagerSession known = connect();
  ASSERT_TRUE(known.begin(of(16 * kMib), server.descriptor()));
  ASSERT_TRUE(early.status());
  on_control([this] { pager_->close(); });
  EXPECT_EQ(early.begin(of(16 * kMib), server.descriptor()).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(PagerSession::connect(path_).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(known.finish(0)) << "what runs goes on";
}

TEST_F(HostPagerTest, OnlyOneListensAndOneThatWasKilledIsReplaced) {
  auto second = Status(tl::unexpect, Error{});
  on_control([&] {
    auto pager = HostPager::listen(control_, path_, engine_, pager_options(), no_state_);
    if (!pager) second = tl::unexpected(pager.error());
  });
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  struct stat mode {};
  ASSERT_EQ(::stat(path_.c_str(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0600U);
  on_control([this] { pager_.reset(); });
  {
    const Fd killed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = unix_address(path_);
    ASSERT_EQ(::bind(killed.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
              0);
  }
  EXPECT_TRUE(listen());
  on_control([this] { pager_.reset(); });
  ASSERT_EQ(::close(::open(path_.c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  EXPECT_EQ(listen().error().code, ErrorCode::kConflict) << "a file is not removed";
}

}  // namespace
}  // namespace farpage::serve
