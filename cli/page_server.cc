// farpage page-server: serves the pages of a checkpoint of criu from its image.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/size.h"
#include "base/strong.h"
#include "cli/image_settings.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "criu/page_server.h"

namespace farpage::cli {
namespace {

struct PageServerSettings : ClusterSettings {
  std::string image;
  std::string address = "127.0.0.1";
  int64_t port = 0;
  bool once = false;
  Milliseconds read_deadline{5000};
  std::string output = "text";
};

// Prints the ready line, for which scripts wait.
void print_ready(const PageServerSettings& settings, const criu::PageServer& server) {
  const criu::AddressIndex& index = server.index();
  const std::string where = to_text(HostPort{settings.address, server.port()});
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"},
                                  {"address", settings.address},
                                  {"port", server.port()},
                                  {"image", settings.image},
                                  {"processes", index.processes()},
                                  {"pages", index.indexed_pages()}};
    fmt::print("{}\n", ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("page server ready: {}, {} of {} processes\n", where,
               format_size(index.indexed_pages() << kPageShift), index.processes());
  }
  std::fflush(stdout);
}

Result<int> serve_pages(const PageServerSettings& settings) {
  criu::PageServerOptions options;
  FARPAGE_TRY(name, image_name(settings.image, "--image"));
  options.image = name;
  options.listen = {settings.address, static_cast<uint16_t>(settings.port)};
  options.once = settings.once;
  options.reads = {.deadline = settings.read_deadline,
                   .operation_timeout = settings.link.operation_timeout};
  options.channel = channel_options(settings.link);
  FARPAGE_TRY(signals, ShutdownSignals::create());
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  FARPAGE_TRY(server, criu::PageServer::create(std::move(options), *parts.images, *parts.client,
                                               parts.transports));
  print_ready(settings, *server);
  FARPAGE_TRY_VOID(server->run(signals.descriptor()));
  if (signals.is_pending()) {
    const int number = signals.wait();
    if (server->clients() > 0)
      log::warn(
          "page-server: stopping signal={} waits_for_clients={}: the next signal ends it, and "
          "then what they restore reads zeros",
          number, server->clients());
    FARPAGE_TRY_VOID(server->drain());
  }
  log::info("page-server: stopped stats={}", server->stats());
  return kExitOk;
}

}  // namespace

void add_page_server(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<PageServerSettings>();
  Subcommand subcommand(
      root, "page-server", "Serve the memory of a checkpoint to criu lazy-pages, from its image",
      {"farpage image push /var/lib/dumps/redis --name redis --without-pages /srv/redis \\",
       "    --coordinator http://10.0.0.1:7070",
       "farpage page-server --image redis --port 9876 --coordinator http://10.0.0.1:7070", "",
       "Then, with the folder that --without-pages has made:", "",
       "criu lazy-pages --page-server --address 127.0.0.1 --port 9876 -D /srv/redis &",
       "criu restore --lazy-pages -D /srv/redis", "",
       "Whoever can connect to the port can read the memory: the protocol has no password."});
  add_cluster_options(subcommand, *settings);
  subcommand.text("--image", settings->image, "Image of the checkpoint")
      .required()
      .text("--address", settings->address, "Address to listen on")
      .number("--port", settings->port, 0, 65535, "Port to listen on; 0: a free one")
      .required()
      .flag("--once", settings->once, "Serve one client, and end when it has ended")
      .duration("--read-deadline", settings->read_deadline,
                "How long to try to read a page before the log says so; it is tried on")
      .choice("--output", settings->output, {"text", "json"}, "Format of the ready line",
              Subcommand::Scope::kShared);
  add_link_options(subcommand, settings->link);
  subcommand.on_run(invocation, [settings] { return serve_pages(*settings); });
}

}  // namespace farpage::cli
