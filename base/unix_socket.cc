#include "base/unix_socket.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace farpage {

std::optional<sockaddr_un> unix_address(std::string_view path) {
  if (path.size() > kMaxUnixPathBytes) return std::nullopt;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int descriptor,
                             int flags) {
  iovec segment{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &segment;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
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
