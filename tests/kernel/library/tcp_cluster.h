// A coordinator and a memory node of this process, whose pages travel over TCP: a READ takes time,
// so that a thread which resolves its own faults evicts meanwhile.
#pragma once

#include <farpage/region.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/agent_client.h"
#include "coordinator/memory_store.h"
#include "coordinator/service.h"
#include "node/node.h"
#include "node/slab_pool.h"
#include "rdma/tcp/tcp.h"

namespace farpage {

class TcpCluster {
 public:
  TcpCluster(uint64_t lend_bytes, uint64_t slab_bytes) {
    // Not on the cluster's threads: what a signal handler of the test touches, they may have.
    sigset_t alarm, before;
    ::sigemptyset(&alarm);
    ::sigaddset(&alarm, SIGALRM);
    ::pthread_sigmask(SIG_BLOCK, &alarm, &before);
    coordinator::ServiceOptions service;
    service.port = 0;
    service_ = coordinator::Service::create(service, coordinator::make_memory_store(),
                                            coordinator::make_http_agent_client({}), clock_)
                   .value();
    auto pool =
        node::SlabPool::create({.lend_bytes = lend_bytes, .slab_bytes = slab_bytes}).value();
    std::vector<std::unique_ptr<rdma::MemoryHost>> hosts;
    hosts.push_back(rdma::make_tcp_memory_host({}).value());
    node::NodeOptions node;
    node.id = NodeId{"n1"};
    node.heartbeat_interval = Milliseconds(200);
    auto client = coordinator::Client::create({service_->url(), ""}).value();
    node_ = node::Node::create(node, std::move(pool), std::move(hosts), std::move(client)).value();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  // For a region whose pages lie there.
  RegionOptions reached_by(RegionOptions options) const {
    options.coordinator = service_->url();
    options.transport = "tcp";
    return options;
  }

 private:
  const SteadyClock clock_;
  std::unique_ptr<coordinator::Service> service_;
  std::unique_ptr<node::Node> node_;
};

}  // namespace farpage
