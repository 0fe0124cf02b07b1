// farpage pager: one engine for the programs of a whole host. Constructs and connects its parts.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/host.h"
#include "base/log.h"
#include "base/size.h"
#include "cli/engine_parts.h"
#include "cli/program.h"
#include "cli/run_settings.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "serve/holder.h"
#include "serve/host_pager.h"
#include "serve/served_state.h"
#include "serve/watch.h"

namespace farpage::cli {
namespace {

constexpr char kClusterVariable[] = "FARPAGE_PAGER_CLUSTER";

struct HostPagerSettings : EngineSettings {
  HostPagerSettings() { pager.local_bytes = 0; }  // half of the available memory
  std::string socket;
  std::string output = "text";
};

// Prints the ready line, for which scripts wait.
void print_ready(const HostPagerSettings& settings, const std::string& coordinator) {
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"},
                                  {"socket", settings.socket},
                                  {"coordinator", coordinator},
                                  {"local_bytes", settings.pager.local_bytes}};
    fmt::print("{}\n", ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("pager ready: {}, {} local, coordinator {}\n", settings.socket,
               format_size(settings.pager.local_bytes), coordinator);
  }
  std::fflush(stdout);
}

// Until a signal, and then until the programs have ended. The next signal ends this process.
int serve_until_signal(boost::asio::io_context& control, serve::HostPager& pager,
                       ShutdownSignals& signals) {
  int number = 0;
  serve::Watch arrival(control, signals.descriptor());
  arrival.wait([&] { number = signals.wait(); });
  while (number == 0 && pager.is_open()) (void)control.run_one();
  pager.close();
  if (pager.has_runs())
    log::warn("pager: stopping signal={} waits_for_processes={}: the next signal kills them",
              number, pager.target_count());
  pager.run_to_end();
  return number;
}

// The engine's process. `takes_over`: the one before was killed.
Result<int> run_engine(const HostPagerSettings& settings, const pager::PagerOptions& options,
                       StateStore& store, bool takes_over) {
  FARPAGE_TRY(signals, ShutdownSignals::create());
  FARPAGE_TRY(state, serve::ServedState::create(&store));
  FARPAGE_TRY(parts, EngineParts::create(settings, options, &store));
  boost::asio::io_context control(1);
  FARPAGE_TRY(pager, serve::HostPager::listen(control, settings.socket, *parts->engine,
                                              {.pager = options, .pool_bytes = options.local_bytes},
                                              state));
  if (!takes_over) print_ready(settings, settings.coordinator);
  const int number = serve_until_signal(control, *pager, signals);
  log::info("pager stopped signal={}", number);
  return kExitOk;
}

// The holder's process: it starts no thread. An embedded cluster lives as long as it does.
Result<int> serve_host(HostPagerSettings settings) {
  const uint64_t available = available_memory_bytes();
  choose_sizes(settings, available);
  if (settings.pager.local_bytes == 0) settings.pager.local_bytes = available / 2;
  FARPAGE_TRY(options, pager_options(settings.pager));
  std::optional<EmbeddedCluster> cluster;
  if (settings.coordinator.empty()) {
    // The processes of a cluster that the former binary has started are this process's.
    std::optional<std::string> url = serve::inherited(kClusterVariable);
    if (!url) {
      FARPAGE_TRY(started, start_cluster(settings));
      cluster.emplace(std::move(started));
      url = cluster->coordinator_url();
    }
    settings.coordinator = *url;
    serve::pass_on(kClusterVariable, *url);
  }
  raise_descriptor_limit();  // also of the engines: each target needs descriptors
  return serve::hold(serve::EndSignals::kPassedOn, [&](StateStore& store, bool takes_over) {
    return status_of_engine(run_engine(settings, options, store, takes_over), takes_over);
  });
}

}  // namespace

void add_pager(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<HostPagerSettings>();
  Subcommand subcommand(
      root, "pager", "Serve the programs of this host with one engine",
      {"farpage pager --socket /run/farpage-pager/pager.sock --local 8G \\",
       "    --coordinator http://10.0.0.1:7070 --token-file /etc/farpage/token",
       "farpage run --pager /run/farpage-pager/pager.sock --local 1G -- ./program",
       "farpage status --pager /run/farpage-pager/pager.sock", "",
       "Its programs share its connections to the nodes, its threads, and --local, of which each",
       "asks for a part (default: half of the available memory). They are those of the same user.",
       "They end with it: SIGTERM waits for them, a second one kills them."});
  add_options(subcommand, static_cast<EngineSettings&>(*settings));
  subcommand.text("--socket", settings->socket, "Where farpage run --pager finds it")
      .required()
      .choice("--output", settings->output, {"text", "json"}, "Format of the ready line",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return serve_host(*settings); });
}

}  // namespace farpage::cli
