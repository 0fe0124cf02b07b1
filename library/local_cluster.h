// LocalCluster: a coordinator and memory nodes inside this process, for tests and first steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/service.h"
#include "node/node.h"
#include "rdma/loop/loop.h"

namespace farpage::library {

struct LocalClusterOptions {
  uint64_t lend_bytes = 0;  // of each node; allocated page by page, on the first write
  uint64_t slab_bytes = 0;
  uint32_t nodes = 1;
};

// Threads: one. The coordinator listens on loopback with a secret token; pages use the in-process
// transport. It ends with this object: regions in it must be closed before.
class LocalCluster {
 public:
  // The nodes join in the background. Fails as coordinator::Service, node::SlabPool (kInvalid,
  // kExhausted) and node::Node do.
  static Result<std::unique_ptr<LocalCluster>> start(const LocalClusterOptions& options);
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  const std::string& url() const { return url_; }
  const std::string& token() const { return token_; }
  // The only one that reaches these nodes.
  std::unique_ptr<rdma::Transport> make_transport() const {
    return rdma::make_loop_transport(network_);
  }

 private:
  LocalCluster();
  Status add_node(const LocalClusterOptions& options, const std::string& name);

  const SteadyClock clock_;
  const std::string token_;
  std::string url_;
  const std::shared_ptr<rdma::LoopNetwork> network_;
  std::unique_ptr<coordinator::Service> service_;
  std::vector<std::unique_ptr<node::Node>> nodes_;
};

}  // namespace farpage::library
