#include "base/unix_socket.h"

namespace farpage {

std::optional<sockaddr_un> unix_address(std::string_view path) {
  if (path.size() > kMaxUnixPathBytes) return std::nullopt;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

Result<ucred> peer_credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return fail_errno("SO_PEERCRED");
  return peer;
}

}  // namespace farpage
