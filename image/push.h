// push(): uploads pages, such as the memory of a guest from a file, into memory nodes, as an image.
//
// Holes and pages of zeros are not sent. What was interrupted goes on where it was: the source is
// read again from its start, and pages are sent from the last checkpoint on, if those
// before it have the digest that was noted there. Until the image is complete nobody serves it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "image/page_source.h"
#include "rdma/transport.h"

namespace farpage::image {

// What a hole of the source says where the image has a base.
enum class Holes : uint8_t {
  kBase,   // as in the base: a diff of a guest's memory
  kZeros,  // zeros: it has all of the memory
};

struct PushOptions {
  ImageId name;
  ImageId base;  // empty: none
  Holes holes = Holes::kBase;
  uint32_t replicas = 1;
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  rdma::ChannelOptions channel;
  Milliseconds patience{30000};  // for a node that does not answer
};

struct PushProgress {
  uint64_t scanned_pages = 0;  // of the source
  uint64_t pages = 0;
  uint64_t zero_pages = 0;
  uint64_t base_pages = 0;     // stored by the base
  uint64_t stored_pages = 0;   // by this image
  uint64_t resumed_pages = 0;  // of those: sent by an earlier push
  uint64_t written_bytes = 0;  // to all replicas
};

struct PushResult {
  PushProgress progress;
  std::string digest;
};

// Blocks. `on_progress` is called now and then. kConflict: the image is complete already, another
// push has taken over, or the source has changed meanwhile.
Result<PushResult> push(const PushOptions& options, const PageSource& source,
                        coordinator::ImageClient& images, coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports,
                        const std::function<void(const PushProgress&)>& on_progress);

}  // namespace farpage::image
