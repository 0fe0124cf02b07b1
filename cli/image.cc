// farpage image: uploads the memory of guests and of checkpoints into memory nodes, and shows,
// checks and removes it.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "cli/image_settings.h"
#include "cli/subcommand.h"
#include "cli/table.h"
#include "criu/checkpoint.h"
#include "image/push.h"
#include "image/verify.h"

namespace farpage::cli {
namespace {

using coordinator::ImageInfo;

struct PushSettings : ClusterSettings {
  std::string file;
  std::string name;
  std::string base;
  std::string holes = "base";
  std::string without_pages;
  int64_t replicas = 1;
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  Milliseconds patience{30000};
  std::string output = "text";
};

struct ImageSettings : ClusterSettings {
  std::string name;
  bool force = false;
  std::string output = "text";
};

// One line that overwrites itself, where somebody looks.
class ProgressLine {
 public:
  ProgressLine() : shown_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (written_) std::fputc('\n', stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    if (!shown_) return;
    fmt::print(stderr, "\r{}\x1b[K", text);
    std::fflush(stderr);
    written_ = true;
  }

 private:
  const bool shown_;
  bool written_ = false;
};

std::string size_of_pages(uint64_t pages) {
  return format_size(pages << kPageShift);
}

void print_pushed(const PushSettings& settings, const image::PushResult& result) {
  const image::PushProgress& p = result.progress;
  if (settings.output == "json") {
    const nlohmann::json pushed = {{"image", settings.name},
                                   {"digest", result.digest},
                                   {"pages", p.pages},
                                   {"zero_pages", p.zero_pages},
                                   {"base_pages", p.base_pages},
                                   {"stored_pages", p.stored_pages},
                                   {"resumed_pages", p.resumed_pages},
                                   {"written_bytes", p.written_bytes}};
    fmt::print("{}\n", pushed.dump());
    return;
  }
  fmt::print("{}: {} of memory: {} stored, {} of the base, {} zeros; {} sent\ndigest {}\n",
             settings.name, size_of_pages(p.pages), size_of_pages(p.stored_pages),
             size_of_pages(p.base_pages), size_of_pages(p.zero_pages), format_size(p.written_bytes),
             result.digest);
  if (p.resumed_pages > 0)
    fmt::print("an earlier push had sent {} of it\n", size_of_pages(p.resumed_pages));
}

Result<image::PushOptions> push_options(const PushSettings& settings) {
  image::PushOptions options;
  FARPAGE_TRY(name, image_name(settings.name, "--name"));
  options.name = name;
  if (!settings.base.empty()) {
    FARPAGE_TRY(base, image_name(settings.base, "--base"));
    options.base = base;
  }
  options.holes = settings.holes == "zeros" ? image::Holes::kZeros : image::Holes::kBase;
  options.replicas = static_cast<uint32_t>(settings.replicas);
  options.slab_bytes = settings.slab_bytes;
  options.channel = channel_options(settings.link);
  options.patience = settings.patience;
  return options;
}

Result<image::PushResult> push_source(const PushSettings& settings,
                                      const image::PushOptions& options,
                                      const image::PageSource& source) {
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  ProgressLine line;
  return image::push(
      options, source, *parts.images, *parts.client, parts.transports,
      [&](const image::PushProgress& p) {
        line.show(fmt::format("{} of {}, {} stored", size_of_pages(p.scanned_pages),
                              size_of_pages(p.pages), size_of_pages(p.stored_pages)));
      });
}

Result<int> push_file(const PushSettings& settings, const image::PushOptions& options) {
  if (!settings.without_pages.empty())
    return fail(ErrorCode::kInvalid,
                "--without-pages: " + settings.file + " is no folder with a checkpoint of criu");
  FARPAGE_TRY(source, image::FileSource::open(settings.file));
  FARPAGE_TRY(pushed, push_source(settings, options, source));
  print_pushed(settings, pushed);
  return kExitOk;
}

Result<int> push_checkpoint(const PushSettings& settings, const image::PushOptions& options) {
  if (!settings.base.empty())
    return fail(ErrorCode::kInvalid,
                "--base: the pages of a checkpoint are not those of another one with its numbers");
  FARPAGE_TRY(checkpoint, criu::Checkpoint::open(settings.file));
  FARPAGE_TRY(source, criu::CheckpointSource::create(checkpoint));
  // Before the push, which cannot be repeated: a disk may be full.
  std::unique_ptr<criu::RemainingCheckpoint> remaining;
  if (!settings.without_pages.empty()) {
    FARPAGE_TRY(made, criu::RemainingCheckpoint::create(checkpoint, settings.without_pages));
    remaining = std::move(made);
  }
  FARPAGE_TRY(pushed, push_source(settings, options, source));
  if (remaining) FARPAGE_TRY_VOID(remaining->keep());
  print_pushed(settings, pushed);
  return kExitOk;
}

Result<int> push_image(const PushSettings& settings) {
  FARPAGE_TRY(options, push_options(settings));
  std::error_code ignored;
  return std::filesystem::is_directory(settings.file, ignored) ? push_checkpoint(settings, options)
                                                               : push_file(settings, options);
}

std::string images_table(const std::vector<ImageInfo>& images) {
  constexpr size_t kShortDigest = 12;
  std::vector<std::vector<std::string>> rows;
  for (const ImageInfo& image : images) {
    const bool complete = image.state == coordinator::ImageState::kComplete;
    rows.push_back({image.name.value, std::string(coordinator::to_string(image.state)),
                    image.base.value.empty() ? "-" : image.base.value, format_size(image.bytes),
                    size_of_pages(image.pages), std::to_string(image.replicas),
                    std::to_string(image.lost_leases), std::to_string(image.readers),
                    complete ? image.digest.substr(0, kShortDigest) : "-"});
  }
  return format_table(
      {"IMAGE", "STATE", "BASE", "MEMORY", "STORED", "REPLICAS", "LOST", "READERS", "DIGEST"},
      rows);
}

Result<int> list_images(const ImageSettings& settings) {
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  if (settings.output == "json") {
    FARPAGE_TRY(body, parts.client->get("/v1/images"));
    fmt::print("{}\n", body);
    return kExitOk;
  }
  FARPAGE_TRY(images, parts.images->images());
  fmt::print("{}", images_table(images));
  return kExitOk;
}

Result<int> remove_image(const ImageSettings& settings) {
  FARPAGE_TRY(name, image_name(settings.name, "NAME"));
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  FARPAGE_TRY_VOID(parts.images->remove(name, settings.force));
  return kExitOk;
}

Result<int> verify_image(const ImageSettings& settings) {
  FARPAGE_TRY(name, image_name(settings.name, "NAME"));
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  const image::VerifyOptions options{.name = name, .channel = channel_options(settings.link)};
  Result<std::vector<image::VerifiedReplica>> replicas = [&] {
    ProgressLine line;
    uint64_t shown = 0;
    return image::verify(options, *parts.images, *parts.client, parts.transports,
                         [&](uint64_t page) {
                           constexpr uint64_t kStep = 16384;
                           if (page / kStep == shown) return;
                           shown = page / kStep;
                           line.show(fmt::format("{} checked", size_of_pages(page)));
                         });
  }();
  if (!replicas) return tl::unexpected(std::move(replicas).error());
  bool right = true;
  for (size_t i = 0; i < replicas->size(); ++i) {
    const image::VerifiedReplica& replica = (*replicas)[i];
    right = right && replica.map_is_right && replica.bad_pages == 0;
    fmt::print("{} replica {}: {} pages right, {} bad, map {}\n", settings.name, i,
               replica.right_pages, replica.bad_pages, replica.map_is_right ? "right" : "bad");
  }
  return right ? kExitOk : kExitFailure;
}

void add_push(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<PushSettings>();
  Subcommand subcommand(
      group, "push", "Upload the memory of a guest from a file, or that of a checkpoint of criu",
      {"farpage image push vm.mem --name ubuntu --coordinator http://10.0.0.1:7070",
       "farpage image push diff.mem --name ubuntu-2 --base ubuntu --replicas 2",
       "farpage image push /var/lib/dumps/redis --name redis --without-pages /srv/redis", "",
       "Holes of the file and pages of zeros are not sent. What was interrupted goes on where it",
       "was. With --base, holes are the pages of the base, as in Firecracker's diff snapshots.",
       "Of a folder that criu dump has filled, the pages that criu lazy-pages asks for are sent;",
       "farpage page-server serves them."});
  subcommand.positional("FILE", settings->file,
                        "The guest's memory: whole 4 KiB pages; or the folder of a checkpoint");
  add_cluster_options(subcommand, *settings);
  subcommand.text("--name", settings->name, "Name of the image")
      .required()
      .text("--base", settings->base, "Image that has the other pages")
      .choice("--holes", settings->holes, {"base", "zeros"},
              "With --base, what holes of the file are: the pages of the base, or zeros")
      .text("--without-pages", settings->without_pages,
            "New folder for the rest of a checkpoint: what criu restore --lazy-pages needs beside "
            "the page server")
      .number("--replicas", settings->replicas, 1, coordinator::kMaxReplicas,
              "Copies of each page, on as many nodes")
      .size("--slab", settings->slab_bytes, "Unit of borrowing; must be that of the nodes")
      .duration("--patience", settings->patience, "How long to wait for a node that is silent")
      .choice("--output", settings->output, {"text", "json"}, "Format of the result",
              Subcommand::Scope::kShared);
  add_link_options(subcommand, settings->link);
  subcommand.on_run(invocation, [settings] { return push_image(*settings); });
}

void add_list(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ImageSettings>();
  Subcommand subcommand(group, "list", "List the images of a cluster",
                        {"farpage image list --coordinator http://127.0.0.1:7070"});
  add_cluster_options(subcommand, *settings);
  subcommand
      .choice("--output", settings->output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return list_images(*settings); });
}

void add_remove(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ImageSettings>();
  Subcommand subcommand(group, "remove", "Give the memory of an image back",
                        {"farpage image remove ubuntu --coordinator http://127.0.0.1:7070"});
  subcommand.positional("NAME", settings->name, "Name of the image");
  add_cluster_options(subcommand, *settings);
  subcommand
      .flag("--force", settings->force,
            "Also while it is read: pages that a guest has not touched yet end in SIGBUS")
      .on_run(invocation, [settings] { return remove_image(*settings); });
}

void add_verify(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ImageSettings>();
  Subcommand subcommand(group, "verify", "Read all of an image, and check each page",
                        {"farpage image verify ubuntu --coordinator http://127.0.0.1:7070"});
  subcommand.positional("NAME", settings->name, "Name of the image");
  add_cluster_options(subcommand, *settings);
  add_link_options(subcommand, settings->link);
  subcommand.on_run(invocation, [settings] { return verify_image(*settings); });
}

}  // namespace

void add_image(CLI::App& root, Invocation& invocation) {
  CLI::App& group = add_group(
      root, "image", "Keep the memory of guests in memory nodes",
      {"farpage image push vm.mem --name ubuntu --coordinator http://10.0.0.1:7070",
       "farpage image list --coordinator http://10.0.0.1:7070",
       "farpage serve --image ubuntu --socket /run/vm.sock --coordinator http://10.0.0.1:7070"});
  add_push(group, invocation);
  add_list(group, invocation);
  add_remove(group, invocation);
  add_verify(group, invocation);
}

}  // namespace farpage::cli
