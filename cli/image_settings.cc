#include "cli/image_settings.h"

#include <fmt/format.h>

#include "cli/secrets.h"
#include "http/json_reader.h"

namespace farpage::cli {

void add_cluster_options(Subcommand& subcommand, ClusterSettings& settings) {
  subcommand
      .text("--coordinator", settings.coordinator,
            "URL of the coordinator; of several all, with commas between",
            Subcommand::Scope::kShared)
      .required()
      .text("--token-file", settings.token_file, "File with the coordinator's bearer token",
            Subcommand::Scope::kShared);
}

void add_link_options(Subcommand& subcommand, PagerSettings& settings) {
  subcommand
      .text("--transport", settings.transports,
            "auto, or a list such as tcp,shm, tried in this order")
      .duration("--operation-timeout", settings.operation_timeout,
                "A READ or WRITE that takes longer is retried")
      .choice("--poll-mode", settings.poll_mode, {"adaptive", "busy", "event"},
              "How to wait for completions")
      .text("--device", settings.device, "RDMA device (default: the first with an active port)")
      .number("--gid-index", settings.gid_index, -1, 255, "GID; -1: RoCE v2, IPv4 first");
}

rdma::ChannelOptions channel_options(const PagerSettings& settings) {
  rdma::ChannelOptions channel;
  channel.operation_timeout = settings.operation_timeout;
  channel.poll_mode = *rdma::poll_mode_from(settings.poll_mode);
  return channel;
}

Result<ClusterParts> ClusterParts::create(const ClusterSettings& settings) {
  FARPAGE_TRY(token, read_token(settings.token_file));
  ClusterParts parts;
  FARPAGE_TRY(transports, make_transports(settings.link));
  parts.transports = std::move(transports);
  FARPAGE_TRY(client, coordinator::Client::create({settings.coordinator, token}));
  parts.client = std::move(client);
  FARPAGE_TRY(images, coordinator::ImageClient::create({settings.coordinator, token}));
  parts.images = std::move(images);
  return parts;
}

Result<ImageId> image_name(const std::string& text, const std::string& flag) {
  if (http::is_name(text)) return ImageId{text};
  return fail(ErrorCode::kInvalid,
              fmt::format("{}: '{}' is no name: 1 to 64 of A-Z a-z 0-9 . _ -", flag, text));
}

}  // namespace farpage::cli
