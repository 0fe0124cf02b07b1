#include "cli/engine_parts.h"

#include <algorithm>

#include "cli/program.h"
#include "cli/secrets.h"
#include "cli/spill.h"
#include "serve/holder.h"

namespace farpage::cli {

Result<EmbeddedCluster> start_cluster(const EngineSettings& settings) {
  const uint64_t slab = settings.pager.slab_bytes;
  EmbeddedClusterOptions options{
      .lend_bytes = std::max(settings.lend_bytes / slab, uint64_t{1}) * slab,
      .slab_bytes = slab,
      .nodes = static_cast<uint32_t>(settings.pager.replicas),
      .device_words = device_words(settings.pager)};
  // On one host verbs has no advantage: use it only on request.
  if (settings.pager.transports != "auto") options.transports = settings.pager.transports;
  return EmbeddedCluster::start(options);
}

Result<std::optional<EmbeddedCluster>> start_missing_cluster(EngineSettings& settings) {
  std::optional<EmbeddedCluster> cluster;
  if (!settings.coordinator.empty()) return cluster;
  FARPAGE_TRY(started, start_cluster(settings));
  settings.coordinator = started.coordinator_url();
  cluster.emplace(std::move(started));
  return cluster;
}

int status_of_engine(const Result<int>& ended, bool takes_over) {
  const int status = exit_status_of(ended);
  return ended || !takes_over ? status : serve::kCannotTakeOver;
}

Result<std::unique_ptr<EngineParts>> EngineParts::create(const EngineSettings& settings,
                                                         const pager::PagerOptions& options,
                                                         StateStore* state) {
  auto parts = std::make_unique<EngineParts>();
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(transports, make_transports(settings.pager));
  parts->transports = std::move(transports);
  FARPAGE_TRY(client, coordinator::Client::create({.url = settings.coordinator, .token = token}));
  parts->client = std::move(client);
  if (!settings.spill.empty()) {
    FARPAGE_TRY(spill_settings, parse_spill(settings.spill));
    FARPAGE_TRY(spill, open_spill(spill_settings, options.slab_bytes, state));
    parts->spill = std::move(spill);
    parts->transports.push_back(parts->spill->transport());
  }
  FARPAGE_TRY(engine, pager::Engine::create(options, *parts->client, parts->transports, state,
                                            parts->spill.get()));
  parts->engine = std::move(engine);
  return parts;
}

}  // namespace farpage::cli
