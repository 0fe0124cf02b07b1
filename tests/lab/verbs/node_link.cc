#include "tests/lab/verbs/node_link.h"

#include <arpa/inet.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/fd.h"
#include "tests/lab/verbs/wire_text.h"

namespace farpage::lab {

Result<NodeLink> NodeLink::start(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail_errno("socketpair");
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "memory_node";
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno("start " + program, error);
  return NodeLink(fdopen(ours.release(), "r+"), pid);
}

Result<NodeLink> NodeLink::connect(const std::string& ip, uint16_t port) {
  FARPAGE_TRY(fd, Fd::from_call(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, ip.c_str(), &address.sin_addr);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return fail_errno("connect to " + ip);
  }
  return NodeLink(fdopen(fd.release(), "r+"), -1);
}

NodeLink::NodeLink(NodeLink&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)), pid_(std::exchange(other.pid_, -1)) {}

NodeLink::~NodeLink() {
  kill_and_reap();
  if (stream_ != nullptr) std::fclose(stream_);
}

void NodeLink::kill_and_reap() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Result<std::string> NodeLink::ask(const std::string& line) {
  std::fprintf(stream_, "%s\n", line.c_str());
  std::fflush(stream_);
  std::array<char, 1024> reply{};
  if (std::fgets(reply.data(), static_cast<int>(reply.size()), stream_) == nullptr) {
    return fail(ErrorCode::kUnavailable, "the memory node does not answer");
  }
  const std::string text = reply.data();
  if (!text.starts_with("ok")) return fail(ErrorCode::kConflict, text);
  return text.substr(2);
}

Result<Lease> NodeLink::expose(rdma::SessionGroup borrower) {
  FARPAGE_TRY(reply, ask("expose " + std::to_string(borrower)));
  std::istringstream words(reply);
  Lease lease;
  words >> lease.address.value >> lease.key.value >> lease.bytes;
  return lease;
}

void NodeLink::withdraw(RemoteKey key) {
  const auto reply = ask("withdraw " + std::to_string(key.value));
  if (!reply) std::fprintf(stderr, "withdraw: %s\n", reply.error().message().c_str());
}

Result<rdma::QueuePairEndpoint> NodeLink::accept(const rdma::QueuePairEndpoint& peer) {
  FARPAGE_TRY(reply, ask("accept " + to_text(peer)));
  std::istringstream words(reply);
  rdma::QueuePairEndpoint theirs;
  if (!read_endpoint(words, theirs)) return fail(ErrorCode::kInvalid, "reply: " + reply);
  return theirs;
}

int64_t NodeLink::peers() {
  const auto reply = ask("peers");
  return reply ? std::stoll(*reply) : -1;
}

int NodeLink::byte_at(size_t offset) {
  const auto reply = ask("byte " + std::to_string(offset));
  return reply ? std::stoi(*reply) : -1;
}

}  // namespace farpage::lab
