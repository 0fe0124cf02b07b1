#include "shim/control.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "shim/descriptor.h"
#include "shim/report.h"

namespace farpage::shim {

namespace handover = uffd::handover;

namespace {

// Receives one message. Returns its length, 0 at the end of the connection, or a negative errno.
// Stores a descriptor that comes with it in `descriptor`.
long receive(int fd, void* words, size_t bytes, int timeout_seconds, int* descriptor = nullptr) {
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    timespec limit{.tv_sec = timeout_seconds, .tv_nsec = 0};
    const long ready = system_call(SYS_ppoll, &waiting, 1, &limit, nullptr, 0);
    if (ready == 0) {
      return -ETIMEDOUT;
    }
    if (ready > 0) {
      alignas(cmsghdr) char rights[CMSG_SPACE(sizeof(int))] = {};
      iovec part{.iov_base = words, .iov_len = bytes};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = rights;
      message.msg_controllen = descriptor != nullptr ? sizeof(rights) : 0;
      const long received = system_call(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC);
      if (received >= 0 && descriptor != nullptr) {
        const cmsghdr* header = CMSG_FIRSTHDR(&message);
        if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
          memcpy(descriptor, CMSG_DATA(header), sizeof(int));
        }
      }
      if (received != -EINTR) {
        return received;
      }
    } else if (ready != -EINTR) {
      return ready;
    }
  }
}

// Sends a message with up to two descriptors.
long send_with(int fd, const void* words, size_t bytes, const int* descriptors, size_t count) {
  alignas(cmsghdr) char rights[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec part{.iov_base = const_cast<void*>(words), .iov_len = bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = rights;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
  }
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

// The process that listens at the other end; 0: unknown.
int listener_pid(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  const long result = system_call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
  return is_error(result) ? 0 : peer.pid;
}

// Waits for Welcome. `sent`: the result of sending Hello.
void await_welcome_or_exit(int fd, long sent, int* descriptor) {
  handover::Welcome welcome;
  const long received = is_error(sent) ? sent
                                       : receive(fd, &welcome, sizeof(welcome),
                                                 Control::kWelcomeTimeoutSeconds, descriptor);
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

}  // namespace

void send_lifeline(int control_fd, int lifeline) {
  handover::Request request;
  request.kind = handover::RequestKind::kLifeline;
  (void)send_with(control_fd, &request, sizeof(request), &lifeline, 1);
}

void Control::hand_over_or_exit(const char* path, const handover::Hello& hello, int userfault_fd,
                                int ring_fd) {
  const int fd = connect_or_exit(path);
  fd_.store(fd, std::memory_order_relaxed);
  run_pid_ = listener_pid(fd);
  allow_reading();
  const int descriptors[2] = {userfault_fd, ring_fd};
  await_welcome_or_exit(fd, send_with(fd, &hello, sizeof(hello), descriptors, 2), nullptr);
}

int Control::hand_over_child_or_exit(int socket, const handover::Hello& hello, int ring_fd) {
  fd_.store(socket, std::memory_order_relaxed);
  allow_reading();
  int userfault_fd = -1;
  await_welcome_or_exit(socket, send_with(socket, &hello, sizeof(hello), &ring_fd, 1),
                        &userfault_fd);
  if (userfault_fd < 0) {
    Report().text("the pager sent a forked child no userfaultfd").write_and_exit();
  }
  return userfault_fd;
}

void Control::allow_reading() const {
  if (run_pid_ > 0) {
    system_call(SYS_prctl, PR_SET_PTRACER, run_pid_, 0, 0, 0);  // EINVAL without Yama
  }
}

long Control::fork_begin(Span span, int& for_child) {
  int pair[2] = {-1, -1};
  const long paired = system_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                  static_cast<int*>(pair));
  if (is_error(paired)) {
    for_child = -1;
    return paired;
  }
  for_child = move_out_of_the_way(pair[0]);
  handover::Request request;
  request.kind = handover::RequestKind::kForkBegin;
  request.address = span.begin;
  request.bytes = span.bytes();
  const long result = exchange(request, pair[1]);
  system_call(SYS_close, pair[1]);
  return result;
}

long Control::request(handover::RequestKind kind, Span span) {
  handover::Request request;
  request.kind = kind;
  request.address = span.begin;
  request.bytes = span.bytes();
  return exchange(request, -1);
}

// Sends `descriptor` too, unless it is -1.
long Control::exchange(handover::Request request, int descriptor) {
  const int connection = fd();
  if (connection < 0) {
    return -EIO;
  }
  request.number = ++last_number_;
  handover::Reply reply;
  long result =
      send_with(connection, &request, sizeof(request), &descriptor, descriptor >= 0 ? 1 : 0);
  while (!is_error(result)) {
    result = receive(connection, &reply, sizeof(reply), kReplyTimeoutSeconds);
    if (result != static_cast<long>(sizeof(reply)) || reply.number >= request.number) {
      break;
    }
  }
  if (result == static_cast<long>(sizeof(reply)) && reply.magic == handover::kMagic) {
    return reply.status > 0 ? -reply.status : reply.status;
  }
  Report()
      .text("the pager is gone: ")
      .error(is_error(result) ? result : -EPIPE)
      .text("; memory of this program cannot be returned, and its remote pages are unreachable")
      .write();
  // Also ends the agent's duplicate: a pager that was only slow sees the connection closed.
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

}  // namespace farpage::shim
