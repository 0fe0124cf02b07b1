#include "rdma/shm/seqpacket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/unix_socket.h"

namespace farpage::rdma::shm {
namespace {

constexpr int kBacklog = 64;

Result<sockaddr_un> address_of(const std::string& path) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (path.empty() || !address)
    return fail(ErrorCode::kInvalid,
                fmt::format("socket_path '{}' must have 1 to {} bytes", path, kMaxUnixPathBytes));
  return *address;
}

Status check_directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  if (!directory.empty() && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("mkdir " + directory);
  struct stat info {};
  if (::stat(directory.empty() ? "/" : directory.c_str(), &info) != 0)
    return fail_errno("stat " + directory);
  if (info.st_uid != ::geteuid() || (info.st_mode & 0077) != 0)
    return fail(ErrorCode::kDenied,
                fmt::format("the directory of socket_path '{}' must belong to this user with mode "
                            "0700: chmod 700 it or choose another",
                            path));
  return {};
}

Result<Fd> make_socket() {
  return Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                       "socket(AF_UNIX)");
}

}  // namespace

std::string to_text(const ShmAddress& address) {
  return address.boot_id + ":" + address.socket_path;
}

std::optional<ShmAddress> shm_address_from(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  return ShmAddress{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

Result<Fd> listen_at(const std::string& path) {
  FARPAGE_TRY(address, address_of(path));
  FARPAGE_TRY_VOID(check_directory(path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return fail(ErrorCode::kConflict, "socket_path '" + path + "' exists and is no socket");
    if (connect_at(path))
      return fail(ErrorCode::kConflict,
                  "socket_path '" + path + "' is in use by a running node: choose another");
    (void)::unlink(path.c_str());
  }
  FARPAGE_TRY(fd, make_socket());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(fd.get(), generic, sizeof address) != 0) return fail_errno("bind " + path);
  if (::listen(fd.get(), kBacklog) != 0) return fail_errno("listen on " + path);
  return fd;
}

Result<Fd> connect_at(const std::string& path) {
  FARPAGE_TRY(address, address_of(path));
  FARPAGE_TRY(fd, make_socket());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(fd.get(), generic, sizeof address) == 0) return fd;
  if (errno == ENOENT || errno == EAGAIN)
    return tl::unexpected(Error{ErrorCode::kUnavailable, "connect to " + path, errno});
  return fail_errno("connect to " + path);
}

Status check_peer_user(int socket) {
  FARPAGE_TRY(peer, peer_credentials(socket));
  const uid_t ours = ::geteuid();
  if (peer.uid == ours || peer.uid == 0 || ours == 0) return {};
  return fail(ErrorCode::kDenied, fmt::format("the peer runs as user {} and this process as user "
                                              "{}: run both under the same one",
                                              peer.uid, ours));
}

PacketOutcome send_packet(int socket, std::span<const std::byte> bytes, int descriptor) {
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return PacketOutcome::kDone;
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == ENOBUFS;
    return full ? PacketOutcome::kWouldBlock : PacketOutcome::kPeerGone;
  }
}

ReceivedPacket receive_packet(int socket, std::span<std::byte> buffer) {
  iovec segment{buffer.data(), buffer.size()};
  // Room for one descriptor: the kernel closes any further ones.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ReceivedPacket packet;
  ssize_t received = -1;
  do {
    received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return packet;
  packet.outcome = received > 0 ? PacketOutcome::kDone : PacketOutcome::kPeerGone;
  packet.bytes = received > 0 ? static_cast<size_t>(received) : 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
    return packet;
  // Padding leaves room for a second descriptor, which must not leak; keep the last one.
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
    packet.descriptor = Fd(descriptor);
  }
  return packet;
}

}  // namespace farpage::rdma::shm
