#include "rdma/shm/seqpacket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

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
  if (send_with_descriptor(socket, bytes, descriptor, MSG_DONTWAIT) >= 0)
    return PacketOutcome::kDone;
  const bool full = errno == EAGAIN || errno == ENOBUFS;
  return full ? PacketOutcome::kWouldBlock : PacketOutcome::kPeerGone;
}

ReceivedPacket receive_packet(int socket, std::span<std::byte> buffer) {
  ReceivedBytes received = receive_with_descriptor(socket, buffer, MSG_DONTWAIT);
  if (received.count < 0 && errno == EAGAIN) return {};
  if (received.count <= 0) return {PacketOutcome::kPeerGone, 0, std::move(received.descriptor)};
  return {PacketOutcome::kDone, static_cast<size_t>(received.count),
          std::move(received.descriptor)};
}

}  // namespace farpage::rdma::shm
