#include "uffd/handover_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "base/strong.h"
#include "base/unix_socket.h"

namespace farpage::uffd {
namespace {

constexpr timeval kPeerTimeout{.tv_sec = 5, .tv_usec = 0};

Result<ucred> permitted_peer(int socket, uid_t user) {
  FARPAGE_TRY(peer, peer_credentials(socket));
  if (peer.uid != user && peer.uid != 0)
    return fail(ErrorCode::kDenied, "this user is not the one that started farpage run");
  return peer;
}

// One received message: its bytes, its descriptors, and the sender's pid if requested.
struct Message {
  size_t bytes = 0;
  std::array<Fd, 2> descriptors;
  size_t descriptor_count = 0;
  pid_t sender = 0;
};

// kCopy, kOnlyLook: the message stays the next one; with copies of its descriptors, or without.
enum class Take : uint8_t { kYes, kCopy, kOnlyLook };

// Takes ownership of received descriptors before it checks the message.
Result<Message> receive(int socket, void* buffer, size_t capacity, const char* what,
                        Take take = Take::kYes, int more_flags = 0) {
  iovec vector{buffer, capacity};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(ucred))>
      control;
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (take != Take::kOnlyLook) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  const int flags = MSG_CMSG_CLOEXEC | MSG_TRUNC | (take == Take::kYes ? 0 : MSG_PEEK) | more_flags;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, flags);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return fail_errno(std::string("receiving ") + what);
  Message message;
  message.bytes = static_cast<size_t>(got);
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      message.sender = sender.pid;
    }
    if (part->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(part) + i * sizeof(int), sizeof raw);
      Fd fd(raw);
      if (message.descriptor_count < message.descriptors.size())
        message.descriptors[message.descriptor_count] = std::move(fd);
      ++message.descriptor_count;
    }
  }
  return message;
}

Status check_hello(const handover::Hello& hello, size_t bytes) {
  if (bytes != sizeof hello || hello.magic != handover::kMagic)
    return fail(ErrorCode::kInvalid, "this is not a farpage Hello");
  if (hello.version != handover::kVersion)
    return fail(ErrorCode::kInvalid,
                "shim and pager are of different versions: use both from one build");
  if (hello.window_bytes == 0 || hello.window_bytes % kPageBytes != 0 ||
      hello.window_address % kPageBytes != 0 || hello.window_bytes > (uint64_t{1} << 46))
    return fail(ErrorCode::kInvalid, "the window in Hello is not whole pages");
  return {};
}

// The target of a checked Hello, without its socket and userfaultfd.
Result<HandedOver> make_target(handover::Hello& hello, const Fd& ring, pid_t pid) {
  struct stat status {};
  if (::fstat(ring.get(), &status) != 0) return fail_errno("fstat of the ring");
  if (static_cast<size_t>(status.st_size) < sizeof(handover::AgentRing))
    return fail(ErrorCode::kInvalid, "the ring in Hello is too small");
  HandedOver target;
  FARPAGE_TRY(mapped, Mapping::shared(ring.get(), sizeof(handover::AgentRing)));
  FARPAGE_TRY(pidfd, Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)),
                                   "pidfd_open of the target"));
  target.pidfd = std::move(pidfd);
  target.ring = std::move(mapped);
  target.pid = pid;
  hello.program[sizeof hello.program - 1] = '\0';
  target.program = hello.program;
  target.window_address = hello.window_address;
  target.window_bytes = hello.window_bytes;
  target.staging_address = hello.window_address;
  target.features = hello.features;
  target.attached = hello.attached_pid != 0;
  target.extent_bytes = hello.extent_bytes;
  target.child = hello.child;
  return target;
}

// Whoever attaches to a process must be its user, or root. The kernel has checked more when the
// agent was injected: this is about the id alone.
Status check_attached(pid_t pid, uid_t user) {
  struct stat status {};
  if (::stat(("/proc/" + std::to_string(pid)).c_str(), &status) != 0)
    return fail(ErrorCode::kNotFound, "the attached process has ended");
  if (user != 0 && status.st_uid != user)
    return fail(ErrorCode::kDenied, "the attached process is another user's");
  return {};
}

// A Hello with its two descriptors.
Result<HandedOver> take_hello(handover::Hello& hello, Message& message, const ucred& sender) {
  FARPAGE_TRY_VOID(check_hello(hello, message.bytes));
  const pid_t peer = hello.attached_pid != 0 ? hello.attached_pid : sender.pid;
  if (hello.attached_pid != 0) FARPAGE_TRY_VOID(check_attached(peer, sender.uid));
  if (message.descriptor_count != 2)
    return fail(ErrorCode::kInvalid, "a Hello carries two descriptors: userfaultfd and ring");
  FARPAGE_TRY(target, make_target(hello, message.descriptors[1], peer));
  target.ring_descriptor = std::move(message.descriptors[1]);
  target.userfaultfd = std::move(message.descriptors[0]);
  return target;
}

Status check_version(uint32_t version) {
  if (version == handover::kVersion) return {};
  return fail(ErrorCode::kInvalid,
              "this farpage run is of another version: use the farpage that started it");
}

Status send_welcome(int socket, int status, const std::string& reason) {
  handover::Welcome welcome;
  welcome.status = status;
  std::strncpy(welcome.reason, reason.c_str(), sizeof welcome.reason - 1);
  if (::send(socket, &welcome, sizeof welcome, MSG_NOSIGNAL) != sizeof welcome)
    return fail_errno("sending Welcome to the target");
  return {};
}

int errno_of(const Error& error) {
  return error.code == ErrorCode::kInvalid ? EINVAL : EBUSY;
}

// A peer's first message. The socket stays with the caller.
Result<Arrival> read_arrival(const Fd& socket, uid_t user) {
  handover::Hello hello;
  FARPAGE_TRY(message, receive(socket.get(), &hello, sizeof hello, "the target's Hello"));
  FARPAGE_TRY(peer, permitted_peer(socket.get(), user));
  if (message.bytes == sizeof(handover::Resize) && hello.magic == handover::kResizeMagic) {
    handover::Resize resize;
    static_assert(sizeof resize <= sizeof hello);
    std::memcpy(static_cast<void*>(&resize), &hello, sizeof resize);
    FARPAGE_TRY_VOID(check_version(resize.version));
    return ResizeCall{.local_bytes = resize.local_bytes};
  }
  if (message.bytes == sizeof(handover::AskChildren) && hello.magic == handover::kChildrenMagic) {
    FARPAGE_TRY_VOID(check_version(hello.version));
    return ChildrenCall();
  }
  return take_hello(hello, message, peer);
}

}  // namespace

Result<Arrival> receive_arrival(Fd socket, uid_t user) {
  Result<Arrival> arrival = read_arrival(socket, user);
  if (!arrival) {
    (void)send_welcome(socket.get(), EPROTO, arrival.error().message());
    return arrival;
  }
  std::visit([&](auto& peer) { peer.socket = std::move(socket); }, *arrival);
  return arrival;
}

Status welcome(const Fd& socket, int status, const std::string& reason) {
  return send_welcome(socket.get(), status, reason);
}

Status answer(const ResizeCall& call, const Result<ResizedProcesses>& changes) {
  const int socket = call.socket.get();
  if (!changes) return send_welcome(socket, errno_of(changes.error()), changes.error().message());
  FARPAGE_TRY_VOID(send_welcome(socket, 0, ""));
  for (const handover::ResizedProcess& process : *changes)
    if (::send(socket, &process, sizeof process, MSG_NOSIGNAL) != sizeof process)
      return fail_errno("sending what a resize has changed");
  return {};
}

Status answer(const ChildrenCall& call, const std::vector<AgentlessChild>& children) {
  const int socket = call.socket.get();
  FARPAGE_TRY_VOID(send_welcome(socket, 0, ""));
  for (const AgentlessChild& child : children) {
    const handover::AgentlessChild& message = child;
    if (send_with_descriptor(socket, std::as_bytes(std::span(&message, 1)), child.userfaultfd) !=
        sizeof message)
      return fail_errno("sending a child without an agent");
  }
  return {};
}

namespace {

Result<std::optional<TargetRequest>> receive_request(const Fd& socket, Take take, int flags) {
  TargetRequest request;
  handover::Request& words = request;
  Result<Message> message =
      receive(socket.get(), &words, sizeof words, "a request of the target", take, flags);
  if (!message && message.error().sys_errno == ECONNRESET) return std::optional<TargetRequest>();
  if (!message) return tl::unexpected(message.error());
  if (message->bytes == 0) return std::optional<TargetRequest>();
  if (message->bytes != sizeof words || words.magic != handover::kMagic)
    return fail(ErrorCode::kInvalid, "a malformed request from the target");
  request.descriptor = std::move(message->descriptors[0]);
  return std::optional(std::move(request));
}

}  // namespace

Result<std::optional<TargetRequest>> read_request(const Fd& socket) {
  return receive_request(socket, Take::kYes, 0);
}

Result<std::optional<TargetRequest>> copy_request(const Fd& socket) {
  return receive_request(socket, Take::kCopy, 0);
}

Result<std::optional<TargetRequest>> peek_request(const Fd& socket, int flags) {
  return receive_request(socket, Take::kOnlyLook, flags);
}

Status expect_child(const Fd& socket) {
  // The parent made the pair, so the credentials of the peer are not the child's.
  const int on = 1;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    return fail_errno("SO_PASSCRED");
  return {};
}

Result<std::optional<HandedOver>> read_child_hello(const Fd& socket) {
  handover::Hello hello;
  Result<Message> message = receive(socket.get(), &hello, sizeof hello, "the child's Hello");
  if (!message && message.error().sys_errno == ECONNRESET) return std::optional<HandedOver>();
  if (!message) return tl::unexpected(message.error());
  if (message->bytes == 0) return std::optional<HandedOver>();
  FARPAGE_TRY_VOID(check_hello(hello, message->bytes));
  if (message->descriptor_count != 1)
    return fail(ErrorCode::kInvalid, "the Hello of a forked child carries its ring alone");
  FARPAGE_TRY(target, make_target(hello, message->descriptors[0], message->sender));
  target.ring_descriptor = std::move(message->descriptors[0]);
  return std::optional(std::move(target));
}

Status welcome_child(const Fd& socket, int userfaultfd) {
  const handover::Welcome welcome;
  const auto bytes = std::as_bytes(std::span(&welcome, 1));
  if (send_with_descriptor(socket.get(), bytes, userfaultfd) != sizeof welcome)
    return fail_errno("sending Welcome to the child");
  return {};
}

Status reply(const Fd& socket, const handover::Request& request, int status) {
  handover::Reply reply;
  reply.status = status;
  reply.number = request.number;
  if (::send(socket.get(), &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply)
    return fail_errno("replying to the target");
  return {};
}

Result<HandoverServer> HandoverServer::listen(const std::string& path) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address)
    return fail(ErrorCode::kInvalid, "the hand-over socket's path is too long: " + path);
  return listen_at(*address, sizeof *address, path);
}

Result<HandoverServer> HandoverServer::listen() {
  return listen_at({.sun_family = AF_UNIX, .sun_path = {}}, sizeof(sa_family_t), "");
}

Result<HandoverServer> HandoverServer::listen_at(const sockaddr_un& address, socklen_t bytes,
                                                 const std::string& path) {
  FARPAGE_TRY(listener,
              Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                            "socket(AF_UNIX)"));
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0)
    return fail_errno("binding " + path);
  if (::listen(listener.get(), SOMAXCONN) != 0) return fail_errno("listening on " + path);
  return HandoverServer(std::move(listener), path, ::geteuid());
}

Result<HandoverServer> HandoverServer::adopt(Fd listener, uid_t user) {
  const auto option = [&listener](int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    const int got = ::getsockopt(listener.get(), SOL_SOCKET, name, &value, &bytes);
    return got == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_SEQPACKET ||
      option(SO_ACCEPTCONN) != 1)
    return fail(ErrorCode::kInvalid, "the descriptor is not the listening socket of a farpage run");
  return HandoverServer(std::move(listener), "", user);
}

HandoverServer::~HandoverServer() {
  if (listener_.valid() && !path_.empty()) ::unlink(path_.c_str());
}

Fd HandoverServer::accept() const {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return socket;
  // A peer that does not send or receive must not delay the others for long.
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPeerTimeout, sizeof kPeerTimeout);
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPeerTimeout, sizeof kPeerTimeout);
  return socket;
}

}  // namespace farpage::uffd
