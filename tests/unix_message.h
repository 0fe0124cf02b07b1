// A message with any number of descriptors, as peers that break the protocol send it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/fd.h"

namespace farpage::test {

inline void send_with(const Fd& socket, const void* bytes, size_t length,
                      const std::vector<int>& descriptors) {
  iovec vector{const_cast<void*>(bytes), length};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  EXPECT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(length));
}

}  // namespace farpage::test
