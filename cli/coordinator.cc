// farpage coordinator: the control plane. Constructs and connects the parts of a coordinator.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "cli/coordinator_settings.h"
#include "cli/secrets.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "coordinator/agent_client.h"
#include "coordinator/service.h"

namespace farpage::cli {
namespace {

// Prints the ready line, for which scripts wait.
void print_ready(const CoordinatorSettings& settings, const std::string& url) {
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"}, {"url", url}, {"store", settings.store}};
    fmt::print("{}\n", ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("coordinator ready: {}, store {}\n", url, settings.store);
  }
  std::fflush(stdout);
}

Result<int> serve(const CoordinatorSettings& settings) {
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(options, service_options(settings, token));
  FARPAGE_TRY(store, open_store(settings.store));
  FARPAGE_TRY(signals, ShutdownSignals::create());
  raise_descriptor_limit();
  auto agents = coordinator::make_http_agent_client({token});
  const SteadyClock clock;
  FARPAGE_TRY(service, coordinator::Service::create(std::move(options), std::move(store),
                                                    std::move(agents), clock));
  print_ready(settings, service->url());
  const int signal_number = signals.wait();
  log::info("coordinator stopping signal={}", signal_number);
  service->stop();
  return kExitOk;
}

}  // namespace

void add_coordinator(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<CoordinatorSettings>();
  Subcommand subcommand(
      root, "coordinator", "Run the coordinator, which assigns the memory of nodes to programs",
      {"farpage coordinator", "farpage coordinator --store sqlite:/var/lib/farpage/coordinator.db",
       "farpage coordinator --listen 0.0.0.0:7070 --token-file /etc/farpage/token"});
  add_options(subcommand, *settings);
  subcommand.on_run(invocation, [settings] { return serve(*settings); });
}

}  // namespace farpage::cli
