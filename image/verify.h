// verify(): reads all of an image, from each replica, and checks each page.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "rdma/transport.h"

namespace farpage::image {

struct VerifiedReplica {
  uint64_t right_pages = 0;
  uint64_t bad_pages = 0;  // with wrong bytes, or that cannot be read; the log names the nodes
  bool map_is_right = false;
};

struct VerifyOptions {
  ImageId name;
  rdma::ChannelOptions channel;
  Milliseconds deadline{5000};  // of one READ
};

// Blocks. One entry for each replica of the image. Pages of a base that has fewer replicas are read
// as often.
Result<std::vector<VerifiedReplica>> verify(
    const VerifyOptions& options, coordinator::ImageClient& images, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports,
    const std::function<void(uint64_t pages)>& on_progress);

}  // namespace farpage::image
