#include "uffd/resize_call.h"

#include <sys/socket.h>

#include <cerrno>
#include <optional>

#include "base/text.h"
#include "base/unix_socket.h"

namespace farpage::uffd {
namespace {

constexpr timeval kAnswerTimeout{.tv_sec = 30, .tv_usec = 0};
constexpr size_t kMaxProcesses = 1U << 16;

// Text from another user must not reach the terminal unchecked.
template <size_t kBytes>
void make_printable(char (&text)[kBytes]) {
  text[kBytes - 1] = '\0';
  for (char* c = text; *c != '\0'; ++c)
    if (is_control(*c)) *c = '?';
}

// Bytes of the next message; 0: the pager has closed the connection.
Result<size_t> receive(const Fd& socket, void* buffer, size_t capacity) {
  ssize_t got = 0;
  do {
    got = ::recv(socket.get(), buffer, capacity, MSG_TRUNC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN)
    return fail(ErrorCode::kTimedOut, "the farpage run does not answer");
  if (got < 0 && errno != ECONNRESET) return fail_errno("receiving the answer of the farpage run");
  return got < 0 ? size_t{0} : static_cast<size_t>(got);
}

tl::unexpected<Error> not_understood() {
  return fail(ErrorCode::kUnsupported,
              "the farpage run sent an answer that this farpage does not know: use the farpage "
              "that started it");
}

Status read_welcome(const Fd& socket) {
  handover::Welcome welcome;
  FARPAGE_TRY(bytes, receive(socket, &welcome, sizeof welcome));
  if (bytes == 0) return fail(ErrorCode::kUnavailable, "the farpage run ended before it answered");
  if (bytes != sizeof welcome || welcome.magic != handover::kMagic) return not_understood();
  make_printable(welcome.reason);
  if (welcome.status == 0) return {};
  if (welcome.version != handover::kVersion) return not_understood();
  return fail(welcome.status == EINVAL ? ErrorCode::kInvalid : ErrorCode::kConflict,
              welcome.reason);
}

}  // namespace

Result<Fd> connect_to_pager(const std::string& path, pid_t pager) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address)
    return fail(ErrorCode::kInvalid, "the hand-over socket's path is too long: " + path);
  FARPAGE_TRY(socket, Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                                    "socket(AF_UNIX)"));
  // Limits connect(2), too: it blocks while the listener's queue is full.
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO})
    (void)::setsockopt(socket.get(), SOL_SOCKET, option, &kAnswerTimeout, sizeof kAnswerTimeout);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED)
      return fail(ErrorCode::kNotFound, "nobody listens on " + path);
    if (errno == EAGAIN) return fail(ErrorCode::kTimedOut, "the farpage run does not answer");
    return fail_errno("connecting to " + path);
  }
  // The credentials of the process that called listen().
  FARPAGE_TRY(peer, peer_credentials(socket.get()));
  if (peer.pid != pager)
    return fail(ErrorCode::kNotFound,
                "process " + std::to_string(peer.pid) + " listens on " + path);
  return socket;
}

Result<ResizedProcesses> resize(const Fd& socket, uint64_t local_bytes) {
  const handover::Resize message{.local_bytes = local_bytes};
  if (::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL) != sizeof message)
    return fail_errno("sending to the farpage run");
  FARPAGE_TRY_VOID(read_welcome(socket));
  ResizedProcesses processes;
  while (processes.size() < kMaxProcesses) {
    handover::ResizedProcess process;
    FARPAGE_TRY(bytes, receive(socket, &process, sizeof process));
    if (bytes == 0) break;
    if (bytes != sizeof process || process.magic != handover::kResizeMagic) return not_understood();
    make_printable(process.program);
    processes.push_back(process);
  }
  return processes;
}

}  // namespace farpage::uffd
