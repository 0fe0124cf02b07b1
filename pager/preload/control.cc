#include "pager/preload/control.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "pager/preload/descriptor.h"
#include "pager/preload/report.h"

namespace farpage::preload {

namespace handover = uffd::handover;

namespace {

// One message of the peer: its length, 0 at the end of the connection, or a negative errno.
long receive(int fd, void* message, size_t bytes, int timeout_seconds) {
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    timespec limit{.tv_sec = timeout_seconds, .tv_nsec = 0};
    const long ready = system_call(SYS_ppoll, &waiting, 1, &limit, nullptr, 0);
    if (ready == 0) {
      return -ETIMEDOUT;
    }
    if (ready > 0) {
      const long received = system_call(SYS_recvfrom, fd, message, bytes, 0, nullptr, nullptr);
      if (received != -EINTR) {
        return received;
      }
    } else if (ready != -EINTR) {
      return ready;
    }
  }
}

long send_hello(int fd, const handover::Hello& hello, int userfault_fd, int ring_fd) {
  alignas(cmsghdr) char rights[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec part{.iov_base = const_cast<handover::Hello*>(&hello), .iov_len = sizeof(hello)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = rights;
  message.msg_controllen = sizeof(rights);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int descriptors[2] = {userfault_fd, ring_fd};
  memcpy(CMSG_DATA(header), descriptors, sizeof(descriptors));
  return system_call(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
}

int connect_or_exit(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(address.sun_path)) {
    Report()
        .text("FARPAGE_HANDOVER is longer than a socket's path may be: ")
        .text(path)
        .write_and_exit();
  }
  memcpy(address.sun_path, path, strlen(path));  // the rest is zeros
  const long fd = system_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const long result = is_error(fd) ? fd : system_call(SYS_connect, fd, &address, sizeof(address));
  if (is_error(result)) {
    Report()
        .text("no pager answers at FARPAGE_HANDOVER=")
        .text(path)
        .text(": ")
        .error(result)
        .text("; start the program with `farpage run`, or unset FARPAGE_HANDOVER and LD_PRELOAD")
        .write_and_exit();
  }
  return move_out_of_the_way(static_cast<int>(fd));
}

}  // namespace

void Control::hand_over_or_exit(const char* path, const handover::Hello& hello, int userfault_fd,
                                int ring_fd) {
  const int fd = connect_or_exit(path);
  fd_.store(fd, std::memory_order_relaxed);
  const long sent = send_hello(fd, hello, userfault_fd, ring_fd);
  handover::Welcome welcome;
  const long received =
      is_error(sent) ? sent : receive(fd, &welcome, sizeof(welcome), kWelcomeTimeoutSeconds);
  if (received != static_cast<long>(sizeof(welcome))) {
    Report()
        .text("the pager did not answer the hand-over: ")
        .error(is_error(received) ? received : -EPIPE)
        .text("; its log says why")
        .write_and_exit();
  }
  if (welcome.magic != handover::kMagic || welcome.version != handover::kVersion) {
    Report()
        .text("the pager speaks version ")
        .number(welcome.version)
        .text(" of the hand-over and this shim version ")
        .number(handover::kVersion)
        .text("; use farpage and libfarpage_preload.so of one build")
        .write_and_exit();
  }
  if (welcome.status != 0) {
    welcome.reason[sizeof(welcome.reason) - 1] = '\0';
    Report().text("the pager refused the hand-over: ").text(welcome.reason).write_and_exit();
  }
}

long Control::request(handover::RequestKind kind, Span span) {
  const int connection = fd();
  if (connection < 0) {
    return -EIO;
  }
  handover::Request request;
  request.kind = kind;
  request.address = span.begin;
  request.bytes = span.bytes();
  handover::Reply reply;
  long result =
      system_call(SYS_sendto, connection, &request, sizeof(request), MSG_NOSIGNAL, nullptr, 0);
  if (!is_error(result)) {
    result = receive(connection, &reply, sizeof(reply), kReplyTimeoutSeconds);
  }
  if (result == static_cast<long>(sizeof(reply)) && reply.magic == handover::kMagic) {
    return reply.status > 0 ? -reply.status : reply.status;
  }
  Report()
      .text("the pager is gone: ")
      .error(is_error(result) ? result : -EPIPE)
      .text("; memory of this program cannot be given back, and what is far cannot be reached")
      .write();
  // Also for the agent's duplicate: a pager that was only slow learns that this is over.
  system_call(SYS_shutdown, connection, SHUT_RDWR);
  close();
  return -EIO;
}

void Control::close() {
  const int connection = fd_.exchange(-1, std::memory_order_relaxed);
  if (connection >= 0) {
    system_call(SYS_close, connection);
  }
}

}  // namespace farpage::preload
