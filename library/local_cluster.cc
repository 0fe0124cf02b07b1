#include "library/local_cluster.h"

#include <fmt/format.h>

#include "base/host.h"
#include "coordinator/agent_client.h"
#include "coordinator/client.h"
#include "coordinator/memory_store.h"
#include "node/slab_pool.h"

namespace farpage::library {
namespace {

constexpr Milliseconds kHeartbeat{200};
// Enough for one borrower, its nodes and its events.
constexpr uint32_t kRequestThreads = 4;

std::string random_token() {
  return fmt::format("{:016x}{:016x}", random_u64(), random_u64());
}

}  // namespace

LocalCluster::LocalCluster() : token_(random_token()), network_(rdma::make_loop_network()) {}

Result<std::unique_ptr<LocalCluster>> LocalCluster::start(const LocalClusterOptions& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster());
  coordinator::ServiceOptions service;
  service.port = 0;
  service.token = cluster->token_;
  service.request_threads = kRequestThreads;
  service.max_long_polls = kRequestThreads;
  FARPAGE_TRY(started,
              coordinator::Service::create(std::move(service), coordinator::make_memory_store(),
                                           coordinator::make_http_agent_client({cluster->token_}),
                                           cluster->clock_));
  cluster->service_ = std::move(started);
  cluster->url_ = cluster->service_->url();
  for (uint32_t i = 0; i < options.nodes; ++i)
    FARPAGE_TRY_VOID(cluster->add_node(options, fmt::format("local-{}", i + 1)));
  return cluster;
}

Status LocalCluster::add_node(const LocalClusterOptions& options, const std::string& name) {
  FARPAGE_TRY(pool, node::SlabPool::create({.lend_bytes = options.lend_bytes,
                                            .slab_bytes = options.slab_bytes,
                                            .lazy = true}));
  FARPAGE_TRY(host, rdma::make_loop_memory_host(network_, name));
  std::vector<std::unique_ptr<rdma::MemoryHost>> hosts;
  hosts.push_back(std::move(host));
  FARPAGE_TRY(client, coordinator::Client::create({url_, token_}));
  node::NodeOptions node;
  node.id = NodeId{name};
  node.agent.token = token_;
  node.heartbeat_interval = kHeartbeat;
  node.first_backoff = Milliseconds(5);
  FARPAGE_TRY(started, node::Node::create(std::move(node), std::move(pool), std::move(hosts),
                                          std::move(client)));
  nodes_.push_back(std::move(started));
  return {};
}

}  // namespace farpage::library
