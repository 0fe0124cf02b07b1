// A transport and its channels to the nodes of a SimulatedCluster.
#pragma once

#include <memory>
#include <vector>

#include "rdma/transport.h"
#include "simulated_cluster.h"

namespace farpage::simulation {

// The nodes outlive it.
std::unique_ptr<rdma::Transport> make_transport(Scheduler& scheduler,
                                                std::vector<std::unique_ptr<SimulatedNode>>& nodes,
                                                const Weather& weather);

}  // namespace farpage::simulation
