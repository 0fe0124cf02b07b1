// The transports that a node offers, from the names on its command line.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "cli/node_settings.h"
#include "rdma/memory_host.h"
#include "rdma/session_fences.h"

namespace farpage::cli {

// `settings` contains the name with which the node joins. Returns one host for each transport of
// the choice. They share `fences`, so a channel fences the previous one of its session over any
// transport. With auto, a transport that this host cannot offer is omitted with a log line; the
// call fails when none works. A transport that was named explicitly must work.
Result<std::vector<std::unique_ptr<rdma::MemoryHost>>> make_memory_hosts(
    const NodeSettings& settings, const rdma::TransportChoice& choice,
    const std::shared_ptr<rdma::SessionFences>& fences);

}  // namespace farpage::cli
