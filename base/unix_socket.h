// Sockets of this host: the address of a path, and who is at the other end.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <optional>
#include <string_view>

#include "base/result.h"

namespace farpage {

// What an address has room for, its end not counted.
inline constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// None: the path is longer than kMaxUnixPathBytes. An empty path is for the caller to refuse.
std::optional<sockaddr_un> unix_address(std::string_view path);

// Of the process at the other end, when it called connect(2), listen(2) or socketpair(2) (unix(7),
// SO_PEERCRED).
Result<ucred> peer_credentials(int fd);

}  // namespace farpage
