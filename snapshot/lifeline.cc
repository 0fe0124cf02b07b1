#include "snapshot/lifeline.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/pidfd.h"
#include "base/unix_socket.h"

namespace farpage::snapshot {

Result<Lifeline> Lifeline::create(int userfaultfd) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("pipe of a lifeline");
  const Fd reader(ends[0]);
  Fd writer(ends[1]);
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail_errno("socket of a lifeline");
  Fd holder(ends[0]);
  Fd sender(ends[1]);
  constexpr std::array kByte{std::byte{0}};
  for (const int in_flight : {reader.get(), userfaultfd})
    if (send_with_descriptor(sender.get(), kByte, in_flight) != 1)
      return fail_errno("descriptors of a lifeline");
  return Lifeline(std::move(writer), std::move(holder), std::move(sender));
}

Status Lifeline::tie(int pidfd, pid_t pid) const {
  std::array<std::byte, 1> byte;
  const Fd reader =
      receive_with_descriptor(holder_.get(), byte, MSG_PEEK | MSG_DONTWAIT).descriptor;
  if (::fcntl(reader.get(), F_SETOWN, pid) != 0 && errno != ESRCH)
    return fail_errno("owner of a lifeline");
  // The owner is a process, not a number; so it is the right one if it has not ended by now.
  if (has_ended(pidfd)) return {};
  if (::fcntl(reader.get(), F_SETSIG, SIGKILL) != 0 || ::fcntl(reader.get(), F_SETFL, O_ASYNC) != 0)
    return fail_errno("signal of a lifeline");
  return {};
}

Lifeline Lifeline::adopt(const std::array<int, kDescriptors>& descriptors) {
  return {Fd(descriptors[0]), Fd(descriptors[1]), Fd(descriptors[2])};
}

}  // namespace farpage::snapshot
