// repair(): copies what an image lacks to other nodes: replicas that are lost, and those whose node
// drains, is lost, is to lend less, or is fuller than others. With the parts with which a pager
// repairs its own region (pager/links/region_repair.h, repairer.h), but that the pages do not
// change, and that all checksums are known, so wrong pages are mended, too.
//
// Who reads the image learns of the new places by its next renewal (coordinator::ReaderHeard).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "pager/options.h"
#include "rdma/transport.h"

namespace farpage::image {

struct RepairOptions {
  ImageId name;
  rdma::ChannelOptions channel;
  pager::RepairRate rate;
  Nanoseconds deadline = Seconds(5);   // of a READ of the map
  Nanoseconds patience = Seconds(20);  // while no slab can be copied: no node has room, or is there
};

struct Repaired {
  uint64_t slabs = 0;
  uint64_t bytes = 0;
};

// Blocks until nothing can be copied, or `stopping`. kConflict: it is still being uploaded.
// kUnavailable: a slab has no replica any more, or the map cannot be read.
Result<Repaired> repair(const RepairOptions& options, coordinator::ImageClient& images,
                        coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports,
                        const std::atomic<bool>& stopping);

}  // namespace farpage::image
