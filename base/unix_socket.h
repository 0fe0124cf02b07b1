// Unix sockets: the address of a path, and the credentials of the peer.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string_view>

#include "base/result.h"

namespace farpage {

// The longest path of an address, without the terminating zero.
inline constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// nullopt: the path is longer than kMaxUnixPathBytes. The caller must reject an empty path.
std::optional<sockaddr_un> unix_address(std::string_view path);

// The credentials of the peer at its call of connect(2), listen(2) or socketpair(2) (unix(7),
// SO_PEERCRED).
Result<ucred> peer_credentials(int fd);

}  // namespace farpage
