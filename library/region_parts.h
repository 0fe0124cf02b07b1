// The members of a Region, for the files that implement it.
#pragma once

#include <memory>
#include <vector>

#include "library/include/farpage/region.h"
#include "library/local_cluster.h"
#include "library/memory.h"

namespace farpage {

RegionError region_error(const Error& error);

// Order matters: later members use earlier ones by address, and are destroyed first.
struct Region::Parts {
  Status borrow_here(const RegionOptions& options);
  Status borrow_from(const RegionOptions& options);
  Status page_here(const RegionOptions& options);
  Status page_at_host_pager(const RegionOptions& options);

  std::unique_ptr<library::LocalCluster> cluster;  // null with a coordinator, or a host's pager
  std::unique_ptr<coordinator::Client> client;
  std::vector<std::unique_ptr<rdma::Transport>> transports;
  std::unique_ptr<library::Memory> memory;  // set by create()
};

}  // namespace farpage
