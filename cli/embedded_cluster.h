// EmbeddedCluster: a coordinator and memory nodes as child processes on this host, so that
// `farpage run` works without a cluster.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/child.h"

namespace farpage::cli {

struct EmbeddedClusterOptions {
  uint64_t lend_bytes = 0;  // of each node
  uint64_t slab_bytes = 0;
  uint32_t nodes = 1;
  std::string transports = "shm,tcp";
  std::vector<std::string> device_words = {};  // options of `farpage node`
};

// Threads: one. The destructor ends the processes.
class EmbeddedCluster {
 public:
  static Result<EmbeddedCluster> start(const EmbeddedClusterOptions& options);

  const std::string& coordinator_url() const { return url_; }

 private:
  EmbeddedCluster(Child coordinator, std::string url)
      : coordinator_(std::move(coordinator)), url_(std::move(url)) {}
  Child coordinator_;
  std::string url_;
  std::vector<Child> nodes_;
};

}  // namespace farpage::cli
