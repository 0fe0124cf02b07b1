// farpage status: lists the lenders and borrowers of a cluster.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/secrets.h"
#include "cli/status_tables.h"
#include "cli/subcommand.h"
#include "coordinator/client.h"
#include "serve/pager_session.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kBetweenLooks{1000};

struct StatusSettings {
  std::string coordinator;
  std::string token_file;
  std::string host_pager;
  std::string output = "text";
};

// Prints the coordinator's answers unchanged, including fields unknown to this version.
Result<int> print_json(coordinator::Client& client) {
  nlohmann::json all;
  for (const char* part : {"nodes", "regions", "cluster"}) {
    FARPAGE_TRY(body, client.get(fmt::format("/v1/{}", part)));
    const nlohmann::json answer = nlohmann::json::parse(body, nullptr, false);
    if (!answer.is_object())
      return fail(
          ErrorCode::kUnavailable,
          fmt::format("/v1/{} is not answered by a coordinator: check --coordinator", part));
    // A list has the form {"nodes": [...]}.
    all[part] = answer.contains(part) && answer[part].is_array() ? answer[part] : answer;
  }
  fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return kExitOk;
}

// Two looks, a second apart, tell how many faults there are.
Result<int> print_pager(const StatusSettings& settings) {
  FARPAGE_TRY(session, serve::PagerSession::connect(settings.host_pager));
  FARPAGE_TRY(before, session.status());
  if (settings.output == "json") {
    fmt::print("{}", serve::json_of(before));
    return kExitOk;
  }
  std::this_thread::sleep_for(kBetweenLooks);
  FARPAGE_TRY(now, session.status());
  fmt::print("{}", pager_text(before, now, kBetweenLooks));
  return kExitOk;
}

Result<int> print_status(const StatusSettings& settings) {
  if (!settings.host_pager.empty()) return print_pager(settings);
  if (settings.coordinator.empty())
    return fail(ErrorCode::kInvalid, "--coordinator URL or --pager PATH: one of them is needed");
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(client, coordinator::Client::create({settings.coordinator, token}));
  if (settings.output == "json") return print_json(*client);
  FARPAGE_TRY(nodes, client->nodes());
  FARPAGE_TRY(regions, client->regions());
  fmt::print("{}", status_text(nodes, regions));
  return kExitOk;
}

}  // namespace

void add_status(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<StatusSettings>();
  Subcommand(root, "status", "Show a cluster, or the programs of a host's pager",
             {"farpage status --coordinator http://127.0.0.1:7070",
              "farpage status --coordinator http://10.0.0.1:7070 --token-file token --output json",
              "farpage status --pager /run/farpage-pager/pager.sock"})
      .text("--coordinator", settings->coordinator,
            "URL of the coordinator; of several all, with commas between",
            Subcommand::Scope::kShared)
      .text("--token-file", settings->token_file, "File with the bearer token",
            Subcommand::Scope::kShared)
      .text("--pager", settings->host_pager,
            "Socket of a farpage pager: show its programs, and their faults in one second",
            Subcommand::Scope::kShared)
      .choice("--output", settings->output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return print_status(*settings); });
}

}  // namespace farpage::cli
