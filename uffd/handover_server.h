// The pager's end of the hand-over: accepts targets on a unix socket, checks their credentials, and
// receives their userfaultfd and ring. It also accepts resize requests. handover.h defines the
// messages.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/result.h"
#include "uffd/handover.h"

namespace farpage::uffd {

// A target that has sent Hello and waits for Welcome.
struct HandedOver {
  Fd socket;
  Fd userfaultfd;
  Fd pidfd;
  Mapping ring;
  Fd ring_descriptor;  // for a successor
  pid_t pid = 0;
  std::string program;
  uint64_t window_address = 0;
  uint64_t window_bytes = 0;
  // Of its agent, if one was injected: the window, but of a forked child, which has none.
  uint64_t staging_address = 0;
  uint64_t features = 0;
  // An agent was injected into it: its window is the agent's staging area, and it has room for so
  // many bytes in extents (AttachedWindow).
  bool attached = false;
  uint64_t extent_bytes = 0;  // 0: as many as the window has
  bool forked = false;        // frames of it may be those of relatives, too
  uint64_t child = 0;         // handover::Hello::child
};

// Sends Welcome: status 0, or an errno with the reason that the target prints before it exits.
Status welcome(const Fd& socket, int status, const std::string& reason);

// `farpage resize`, which waits for Welcome.
struct ResizeCall {
  Fd socket;
  uint64_t local_bytes = 0;
};
using ResizedProcesses = std::vector<handover::ResizedProcess>;

// Sends the changes, or the reason why there are none.
Status answer(const ResizeCall& call, const Result<ResizedProcesses>& changes);

// `farpage attach`, which waits for Welcome.
struct ChildrenCall {
  Fd socket;
};
// A forked child of an attached program that has no agent.
struct AgentlessChild : handover::AgentlessChild {
  int userfaultfd = -1;  // of the target, which outlives this
};

// Sends them. The caller closes the socket.
Status answer(const ChildrenCall& call, const std::vector<AgentlessChild>& children);

// What a peer that has connected wants.
using Arrival = std::variant<HandedOver, ResizeCall, ChildrenCall>;

// Reads the first message of a connection that HandoverServer has accepted, when it is readable.
// Peers of other users than `user` (except root) and malformed messages are refused: they are told
// the reason.
Result<Arrival> receive_arrival(Fd socket, uid_t user);

// A request, and the descriptor that came with it, if any.
struct TargetRequest : handover::Request {
  Fd descriptor;
};

// The next request of a target. Blocks. nullopt: it closed the socket (exit or exec).
// kInvalid: a malformed request; close the socket.
Result<std::optional<TargetRequest>> read_request(const Fd& socket);
// The same, but the request stays the next one, with its descriptor: whoever takes the place of a
// process that is killed now finds it.
// `flags`: of recvmsg(2).
Result<std::optional<TargetRequest>> peek_request(const Fd& socket, int flags = 0);
// The same, with a copy of its descriptor.
Result<std::optional<TargetRequest>> copy_request(const Fd& socket);
Status reply(const Fd& socket, const handover::Request& request, int status);

// A forked child on the socket that came with its parent's kForkBegin. In order: expect_child()
// before the fork, its Hello, then Welcome with its userfaultfd. HandedOver::userfaultfd stays
// empty; the caller keeps the socket. nullopt: the child ended first.
Status expect_child(const Fd& socket);
Result<std::optional<HandedOver>> read_child_hello(const Fd& socket);
Status welcome_child(const Fd& socket, int userfaultfd);

// Threads: one.
class HandoverServer {
 public:
  // Listens on `path` in a directory that only this user may enter. The destructor removes `path`.
  static Result<HandoverServer> listen(const std::string& path);
  // On an abstract address that the kernel chooses (getsockname(2) tells it).
  static Result<HandoverServer> listen();
  // Takes the listening socket of another process, whose user's targets it accepts. kInvalid: it is
  // none.
  static Result<HandoverServer> adopt(Fd listener, uid_t user);
  HandoverServer(HandoverServer&&) = default;
  ~HandoverServer();

  // Readable when accept() has a connection.
  int descriptor() const { return listener_.get(); }
  // Never waits; invalid: there is none.
  Fd accept() const;
  const std::string& path() const { return path_; }  // empty: there is none
  uid_t user() const { return user_; }

 private:
  static Result<HandoverServer> listen_at(const sockaddr_un& address, socklen_t bytes,
                                          const std::string& path);
  HandoverServer(Fd listener, std::string path, uid_t user)
      : listener_(std::move(listener)), path_(std::move(path)), user_(user) {}
  Fd listener_;
  std::string path_;
  uid_t user_;
};

}  // namespace farpage::uffd
