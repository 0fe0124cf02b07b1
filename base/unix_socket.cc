#include "base/unix_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace farpage {

std::optional<sockaddr_un> unix_address(std::string_view path) {
  if (path.size() > kMaxUnixPathBytes) return std::nullopt;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

Result<Fd> connect_to_path(const std::string& path, int type) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address) return fail(ErrorCode::kInvalid, "the path of a socket is too long: " + path);
  FARPAGE_TRY(socket, Fd::from_call(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0), "socket(AF_UNIX)"));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail_errno("connecting to " + path);
  return socket;
}

Result<Fd> listen_at_path(const std::string& path, const std::string& what) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address || path.empty())
    return fail(ErrorCode::kInvalid, what + " " + path + ": the path must have 1 to " +
                                         std::to_string(kMaxUnixPathBytes) + " bytes");
  if (connect_to_path(path, SOCK_STREAM))
    return fail(ErrorCode::kConflict, what + " " + path + ": somebody listens there already");
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode))
      return fail(ErrorCode::kConflict, what + " " + path + " exists, and is no socket");
    (void)::unlink(path.c_str());
  }
  FARPAGE_TRY(socket,
              Fd::from_call(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                            "socket(AF_UNIX)"));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail_errno("binding " + what + " " + path);
  // Who may connect is checked by credentials as well.
  if (::chmod(path.c_str(), 0600) != 0) return fail_errno("mode of " + path);
  if (::listen(socket.get(), SOMAXCONN) != 0) return fail_errno("listening at " + path);
  return socket;
}

ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int descriptor,
                             int flags) {
  return send_with_descriptors(socket, bytes,
                               std::span<const int>(&descriptor, descriptor >= 0 ? 1 : 0), flags);
}

ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors, int flags) {
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxSentDescriptors * sizeof(int))> control{};
  FARPAGE_CHECK(descriptors.size() <= kMaxSentDescriptors, "%zu descriptors", descriptors.size());
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ReceivedBytes receive_with_descriptor(int socket, std::span<std::byte> buffer, int flags) {
  iovec segment{buffer.data(), buffer.size()};
  // Room for one descriptor: the kernel closes any further ones.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ReceivedBytes received;
  do {
    received.count = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received.count < 0 && errno == EINTR);
  if (received.count < 0) return received;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
    return received;
  // Padding leaves room for a second descriptor, which must not leak; keep the last one.
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
    received.descriptor = Fd(descriptor);
  }
  return received;
}

Result<ucred> peer_credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return fail_errno("SO_PEERCRED");
  return peer;
}

}  // namespace farpage
