// NodeLink: a test's connection to a memory node process (memory_node.cc), which it may have
// started.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/result.h"
#include "rdma/session_fences.h"
#include "rdma/transport.h"

namespace farpage::lab {

struct Lease {
  RemoteAddress address;
  RemoteKey key;
  size_t bytes = 0;
};

// Threads: one. Destruction ends a process that it started.
class NodeLink {
 public:
  // The program in the directory of this test's binary.
  static Result<NodeLink> start(const std::vector<std::string>& arguments = {});
  // A node that listens on another machine.
  static Result<NodeLink> connect(const std::string& ip, uint16_t port);
  NodeLink(NodeLink&& other) noexcept;
  NodeLink& operator=(NodeLink&&) = delete;
  ~NodeLink();

  Result<Lease> expose(rdma::SessionGroup borrower = 0);
  void withdraw(RemoteKey key);
  Result<rdma::QueuePairEndpoint> accept(const rdma::QueuePairEndpoint& peer);
  // Peers that have a queue pair there, -1 if the node does not answer.
  int64_t peers();
  int byte_at(size_t offset);
  // SIGKILL; returns when the process is gone.
  void kill_and_reap();

 private:
  NodeLink(FILE* stream, pid_t pid) : stream_(stream), pid_(pid) {}
  // The reply without its "ok"; kUnavailable without a reply, kConflict with the text of an error.
  Result<std::string> ask(const std::string& line);

  FILE* stream_ = nullptr;
  pid_t pid_ = -1;
};

}  // namespace farpage::lab
