#include "share/arrival.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "share/message.h"

namespace farpage::share {
namespace {

constexpr size_t kMaxDescriptors = 1 + kMaxMemories;

// As recvmsg(2); appends the descriptors. False: some did not fit, and the kernel has closed them.
bool receive(int socket, std::span<char> bytes, std::vector<Fd>& descriptors, ssize_t& count) {
  iovec vector{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  do {
    count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return true;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t sent = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < sent; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
      descriptors.emplace_back(descriptor);
    }
  }
  return (message.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

Result<bool> Arrival::read(Instant now) {
  std::array<char, 4096> part;
  while (true) {
    ssize_t count = 0;
    const bool whole = receive(socket_.get(), part, descriptors_, count);
    if (!whole || descriptors_.size() > kMaxDescriptors)
      return fail(ErrorCode::kExhausted,
                  fmt::format("more than {} descriptors: the userfaultfd, then at most {} memfds",
                              kMaxDescriptors, kMaxMemories));
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0) return fail_errno("reading the message of the process");
    if (count == 0) return fail(ErrorCode::kUnavailable, "the process closed the socket");
    text_.append(part.data(), static_cast<size_t>(count));
    const size_t end = text_.find('\n');
    if (end != std::string::npos && end + 1 < text_.size())
      return fail(ErrorCode::kInvalid, "there is more behind the message: send one line");
    if (end != std::string::npos) return true;
    if (text_.size() > kMaxMessageBytes)
      return fail(ErrorCode::kExhausted,
                  fmt::format("the message has more than {} bytes", kMaxMessageBytes));
  }
  if (now < until_) return false;
  return fail(ErrorCode::kTimedOut,
              "the message did not end within 10 s: send a newline behind the array");
}

}  // namespace farpage::share
