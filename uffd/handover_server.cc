#include "uffd/handover_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/strong.h"

namespace farpage::uffd {
namespace {

constexpr timeval kPeerTimeout{.tv_sec = 5, .tv_usec = 0};

Result<ucred> peer_credentials(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return fail_errno("SO_PEERCRED");
  if (peer.uid != ::geteuid() && peer.uid != 0)
    return fail(ErrorCode::kDenied, "the target runs as another user than the pager");
  return peer;
}

// One Hello with its two descriptors; whatever arrives is owned before it is judged.
Result<HandedOver> receive_hello(Fd socket) {
  handover::Hello hello;
  iovec vector{&hello, sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return fail_errno("receiving the target's Hello");
  std::array<Fd, 2> descriptors;
  size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header) + i * sizeof(int), sizeof raw);
      Fd fd(raw);
      if (count < descriptors.size()) descriptors[count] = std::move(fd);
      ++count;
    }
  }
  FARPAGE_TRY(peer, peer_credentials(socket.get()));
  if (static_cast<size_t>(got) != sizeof hello || hello.magic != handover::kMagic)
    return fail(ErrorCode::kInvalid, "this is not a farpage Hello");
  if (hello.version != handover::kVersion)
    return fail(ErrorCode::kInvalid,
                "shim and pager are of different versions: use both from one build");
  if (count != descriptors.size())
    return fail(ErrorCode::kInvalid, "a Hello carries two descriptors: userfaultfd and ring");
  if (hello.window_bytes == 0 || hello.window_bytes % kPageBytes != 0 ||
      hello.window_address % kPageBytes != 0 || hello.window_bytes > (uint64_t{1} << 46))
    return fail(ErrorCode::kInvalid, "the window in Hello is not whole pages");
  struct stat status {};
  if (::fstat(descriptors[1].get(), &status) != 0) return fail_errno("fstat of the ring");
  if (static_cast<size_t>(status.st_size) < sizeof(handover::AgentRing))
    return fail(ErrorCode::kInvalid, "the ring in Hello is too small");
  HandedOver target;
  FARPAGE_TRY(ring, Mapping::shared(descriptors[1].get(), sizeof(handover::AgentRing)));
  FARPAGE_TRY(pidfd, Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)),
                                   "pidfd_open of the target"));
  target.socket = std::move(socket);
  target.userfaultfd = std::move(descriptors[0]);
  target.pidfd = std::move(pidfd);
  target.ring = std::move(ring);
  target.pid = peer.pid;
  hello.program[sizeof hello.program - 1] = '\0';
  target.program = hello.program;
  target.window_address = hello.window_address;
  target.window_bytes = hello.window_bytes;
  target.features = hello.features;
  return target;
}

Status send_welcome(int socket, int status, const std::string& reason) {
  handover::Welcome welcome;
  welcome.status = status;
  std::strncpy(welcome.reason, reason.c_str(), sizeof welcome.reason - 1);
  if (::send(socket, &welcome, sizeof welcome, MSG_NOSIGNAL) != sizeof welcome)
    return fail_errno("sending Welcome to the target");
  return {};
}

}  // namespace

bool process_alive(const Fd& pidfd) {
  pollfd poll{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) == 0;
}

Status welcome(const HandedOver& target, int status, const std::string& reason) {
  return send_welcome(target.socket.get(), status, reason);
}

Result<std::optional<handover::Request>> read_request(const Fd& socket) {
  handover::Request request;
  ssize_t got = 0;
  do {
    got = ::recv(socket.get(), &request, sizeof request, MSG_TRUNC);
  } while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) return std::optional<handover::Request>();
  if (got < 0) return fail_errno("receiving a request of the target");
  if (static_cast<size_t>(got) != sizeof request || request.magic != handover::kMagic)
    return fail(ErrorCode::kInvalid, "a malformed request from the target");
  return std::optional(request);
}

Status reply(const Fd& socket, int status) {
  handover::Reply reply;
  reply.status = status;
  if (::send(socket.get(), &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply)
    return fail_errno("replying to the target");
  return {};
}

Result<HandoverServer> HandoverServer::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::kInvalid, "the hand-over socket's path is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FARPAGE_TRY(listener, Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                                      "socket(AF_UNIX)"));
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return fail_errno("binding " + path);
  if (::listen(listener.get(), 16) != 0) return fail_errno("listening on " + path);
  FARPAGE_TRY(stop, Fd::from_call(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"));
  return HandoverServer(std::move(listener), std::move(stop), path);
}

HandoverServer::~HandoverServer() {
  if (listener_.valid()) ::unlink(path_.c_str());
}

void HandoverServer::stop() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
}

Result<std::optional<HandedOver>> HandoverServer::accept() {
  while (true) {
    std::array<pollfd, 2> polls{pollfd{listener_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(polls.data(), polls.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return fail_errno("poll for targets");
    }
    if (polls[1].revents != 0) return std::optional<HandedOver>();
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) continue;  // the peer gave up
    // A peer that connects and says nothing must not hold up the others for long.
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPeerTimeout, sizeof kPeerTimeout);
    const int raw = socket.get();
    const Fd for_refusal(::dup(raw));
    Result<HandedOver> target = receive_hello(std::move(socket));
    if (!target) {
      (void)send_welcome(for_refusal.get(), EPROTO, target.error().message());
      continue;
    }
    const timeval forever{};
    (void)::setsockopt(target->socket.get(), SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
    return std::optional<HandedOver>(std::move(*target));
  }
}

}  // namespace farpage::uffd
