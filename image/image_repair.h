// repair(): copies what an image lacks to other nodes: replicas that are lost, and those whose node
// drains, is lost, is to lend less, or is fuller than others. By the parts with which a pager
// repairs its own region (pager/links/region_repair.h, repairer.h): the pages do not change, and
// the checksums of all are known, so wrong pages are mended, too.
//
// Who reads the image learns of the new places by its next renewal (renewer.h).
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
  Nanoseconds patience = Seconds(20);  // while no slab is copied: no node has room, or is there
};

struct Repaired {
  uint64_t slabs = 0;
  uint64_t bytes = 0;
};

// Blocks until nothing can be copied, another process copies the image, or `stopping`, which is
// looked at once the map was read. Memory meanwhile: 8 bytes for each page of the image, and 16
// until its map was read. kConflict: it is still being uploaded. kUnavailable: the map cannot be
// read.
Result<Repaired> repair(const RepairOptions& options, coordinator::ImageClient& images,
                        coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports,
                        const std::atomic<bool>& stopping);

}  // namespace farpage::image
