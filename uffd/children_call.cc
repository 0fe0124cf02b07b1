#include "uffd/children_call.h"

#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <utility>

#include "base/unix_socket.h"

namespace farpage::uffd {
namespace {

constexpr timeval kAnswerTimeout{.tv_sec = 2, .tv_usec = 0};
constexpr size_t kMaxChildren = 1U << 16;

// False: the end of the answer.
template <typename Message>
Result<bool> receive(const Fd& socket, Message& message, Fd& descriptor) {
  ReceivedBytes received =
      receive_with_descriptor(socket.get(), std::as_writable_bytes(std::span(&message, 1)));
  if (received.count == 0) return false;
  if (received.count < 0 && errno == EAGAIN)
    return fail(ErrorCode::kTimedOut, "the pager does not tell its children");
  if (received.count < 0 && errno == ECONNRESET)
    return fail(ErrorCode::kUnavailable, "the pager has ended before it has told its children");
  if (received.count < 0) return fail_errno("receiving the children of the pager");
  if (static_cast<size_t>(received.count) != sizeof message)
    return fail(ErrorCode::kIo, "the pager has sent what is no answer");
  descriptor = std::move(received.descriptor);
  return true;
}

}  // namespace

Result<std::vector<FoundChild>> ask_children(const std::string& path) {
  FARPAGE_TRY(socket, connect_to_path(path, SOCK_SEQPACKET));
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO})
    (void)::setsockopt(socket.get(), SOL_SOCKET, option, &kAnswerTimeout, sizeof kAnswerTimeout);
  const handover::AskChildren question;
  if (::send(socket.get(), &question, sizeof question, MSG_NOSIGNAL) != sizeof question)
    return fail_errno("asking the pager for its children");
  handover::Welcome welcome;
  Fd none;
  FARPAGE_TRY(welcomed, receive(socket, welcome, none));
  if (!welcomed)
    return fail(ErrorCode::kUnavailable, "the pager has ended before it has told its children");
  welcome.reason[sizeof welcome.reason - 1] = '\0';
  if (welcome.status != 0)
    return fail(ErrorCode::kConflict, std::string("the pager refuses: ") + welcome.reason);
  std::vector<FoundChild> children;
  while (children.size() < kMaxChildren) {
    FoundChild child;
    handover::AgentlessChild& words = child;
    FARPAGE_TRY(any, receive(socket, words, child.descriptor));
    if (!any) break;
    if (words.magic != handover::kChildrenMagic || !child.descriptor.valid())
      return fail(ErrorCode::kIo, "the pager has sent what is no child");
    children.push_back(std::move(child));
  }
  return children;
}

}  // namespace farpage::uffd
