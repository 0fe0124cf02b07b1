#include "snapshot/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <span>

#include "base/unix_socket.h"

namespace farpage::snapshot {

Result<Lifeline> Lifeline::tie(int userfaultfd, int pidfd, pid_t pid) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("pipe of a lifeline");
  const Fd reader(ends[0]);
  Fd writer(ends[1]);
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail_errno("socket of a lifeline");
  Fd holder(ends[0]);
  Fd sender(ends[1]);
  if (::fcntl(reader.get(), F_SETOWN, pid) != 0 || ::fcntl(reader.get(), F_SETSIG, SIGKILL) != 0 ||
      ::fcntl(reader.get(), F_SETFL, O_ASYNC) != 0)
    return fail_errno("fcntl of a lifeline");
  const std::array<int, 2> in_flight{reader.get(), userfaultfd};
  constexpr std::array kByte{std::byte{0}};
  if (send_with_descriptors(sender.get(), kByte, in_flight) != 1)
    return fail_errno("descriptors of a lifeline");
  // The owner is a process, not a number; so it is the right one if it has not ended by now.
  pollfd ended{pidfd, POLLIN, 0};
  if (::poll(&ended, 1, 0) != 0) return fail(ErrorCode::kUnavailable, "the VMM has ended");
  return Lifeline(std::move(writer), std::move(holder), std::move(sender));
}

Lifeline Lifeline::adopt(const std::array<int, kDescriptors>& descriptors) {
  return {Fd(descriptors[0]), Fd(descriptors[1]), Fd(descriptors[2])};
}

}  // namespace farpage::snapshot
