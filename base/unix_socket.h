// Unix sockets: the address of a path, descriptors with bytes, and the credentials of the peer.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace farpage {

// The longest path of an address, without the terminating zero.
inline constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// nullopt: the path is longer than kMaxUnixPathBytes. The caller must reject an empty path.
std::optional<sockaddr_un> unix_address(std::string_view path);

// A connected socket; `type` is SOCK_STREAM or SOCK_SEQPACKET. kInvalid: the path is too long.
Result<Fd> connect_to_path(const std::string& path, int type);

// A listening stream socket without blocking, for this user alone (mode 0600). One that nobody
// listens on any more, as a killed process has left it, is replaced. `what` is for messages:
// "--socket". kInvalid: no path of a socket. kConflict: somebody listens there, or it is another
// file.
Result<Fd> listen_at_path(const std::string& path, const std::string& what);

// Sends bytes, and a descriptor with the first of them (-1: none). As sendmsg(2) with MSG_NOSIGNAL,
// but never EINTR.
ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int descriptor,
                             int flags = 0);

// The same with up to kMaxSentDescriptors.
inline constexpr size_t kMaxSentDescriptors = 2;
ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors, int flags = 0);

struct ReceivedBytes {
  ssize_t count = -1;  // as recvmsg(2), but never EINTR
  Fd descriptor;       // the last that came; invalid: none
};
ReceivedBytes receive_with_descriptor(int socket, std::span<std::byte> buffer, int flags = 0);

// The credentials of the peer at its call of connect(2), listen(2) or socketpair(2) (unix(7),
// SO_PEERCRED).
Result<ucred> peer_credentials(int fd);

}  // namespace farpage
