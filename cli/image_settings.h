// What the subcommands that use images have in common: the cluster and the transports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run_settings.h"
#include "cli/subcommand.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "rdma/transport.h"

namespace farpage::cli {

struct ClusterSettings {
  std::string coordinator;
  std::string token_file;
  PagerSettings link;  // of its fields, those of transports and channels
};

// --coordinator, which is required, and --token-file.
void add_cluster_options(Subcommand& subcommand, ClusterSettings& settings);
// --transport, --operation-timeout, --poll-mode, and those of RDMA devices.
void add_link_options(Subcommand& subcommand, PagerSettings& settings);
rdma::ChannelOptions channel_options(const PagerSettings& settings);

// Clients of the coordinator and transports, in the order of their construction.
struct ClusterParts {
  static Result<ClusterParts> create(const ClusterSettings& settings);

  std::unique_ptr<coordinator::Client> client;
  std::unique_ptr<coordinator::ImageClient> images;
  std::vector<std::unique_ptr<rdma::Transport>> transports;
};

// The name of an image. kInvalid: none. `flag` has it.
Result<ImageId> image_name(const std::string& text, const std::string& flag);

}  // namespace farpage::cli
