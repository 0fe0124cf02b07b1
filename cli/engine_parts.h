// EngineParts: an engine and what it stands on, for the subcommands that serve programs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "cli/embedded_cluster.h"
#include "cli/run_settings.h"
#include "coordinator/client.h"
#include "pager/engine.h"
#include "rdma/file/file.h"
#include "rdma/transport.h"

namespace farpage::cli {

// An embedded cluster. Starts no thread.
Result<EmbeddedCluster> start_cluster(const EngineSettings& settings);
// One where the settings name no coordinator: then they name its own.
Result<std::optional<EmbeddedCluster>> start_missing_cluster(EngineSettings& settings);

// The exit status of a held engine (serve/holder.h), which prints why it could not start.
int status_of_engine(const Result<int>& ended, bool takes_over);

// Threads: one. Members in the order of their construction.
struct EngineParts {
  // settings.coordinator is not empty. Starts threads: handle signals before. `state`: as
  // Engine::create().
  static Result<std::unique_ptr<EngineParts>> create(const EngineSettings& settings,
                                                     const pager::PagerOptions& options,
                                                     StateStore* state);

  std::unique_ptr<rdma::OpenFile> spill;  // null: none
  std::vector<std::unique_ptr<rdma::Transport>> transports;
  std::unique_ptr<coordinator::Client> client;
  std::unique_ptr<pager::Engine> engine;
};

}  // namespace farpage::cli
