// farpage share: far memory for guest memory that several processes share. Constructs and connects
// its parts.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/host.h"
#include "base/log.h"
#include "base/size.h"
#include "cli/engine_parts.h"
#include "cli/output_file.h"
#include "cli/program.h"
#include "cli/run_settings.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "serve/holder.h"
#include "serve/run_report.h"
#include "serve/served_state.h"
#include "share/share_pager.h"

namespace farpage::cli {
namespace {

struct ShareSettings : EngineSettings {
  std::string socket;
  int64_t processes = 1;
  bool stay = false;
  bool stats = false;
  std::string stats_file;
  std::string output = "text";
};

// Prints the ready line, for which scripts wait.
void print_sharing(const ShareSettings& settings) {
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"},
                                  {"socket", settings.socket},
                                  {"coordinator", settings.coordinator},
                                  {"local_bytes", settings.pager.local_bytes}};
    fmt::print("{}\n", ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("ready for shared memory: {}, {} of each stay here\n", settings.socket,
               format_size(settings.pager.local_bytes));
  }
  std::fflush(stdout);
}

Status report(const ShareSettings& settings, const std::vector<serve::TargetReport>& reports) {
  if (settings.stats) fmt::print(stderr, "{}", serve::format_report(reports));
  return write_output("--stats-file", settings.stats_file, serve::json_report(reports, kExitOk));
}

// The engine's process. `takes_over`: the one before was killed.
Result<int> run_engine(const ShareSettings& settings, const pager::PagerOptions& options,
                       StateStore& store, bool takes_over) {
  // Those by which the holder is told to end. No thread of the engine gets them otherwise.
  FARPAGE_TRY(signals, block_signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}));
  FARPAGE_TRY(state, serve::ServedState::create(&store));
  FARPAGE_TRY(parts, EngineParts::create(settings, options, &store));
  std::vector<serve::TargetReport> reports;
  const auto note = [&](const share::GroupReport& ended) {
    reports.push_back({.program = ended.program,
                       .pid = ended.pid,
                       .counts = ended.stats,
                       .latencies = ended.stats.latencies(),
                       .touches = nullptr});
  };
  FARPAGE_TRY(pager,
              share::SharePager::create({.socket = settings.socket,
                                         .local_bytes = options.local_bytes,
                                         .processes = static_cast<size_t>(settings.processes),
                                         .stay = settings.stay,
                                         .on_end = note},
                                        *parts->engine, state));
  if (!takes_over) print_sharing(settings);
  FARPAGE_TRY_VOID(pager->run(signals.get()));
  FARPAGE_TRY_VOID(report(settings, reports));
  return kExitOk;
}

std::set<int> open_pidfds() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == "anon_inode:[pidfd]")
      found.insert(std::stoi(entry.path().filename().string()));
  }
  return found;
}

// Processes that nobody serves any more must not go on: they would read zeros. An engine that has
// ended by itself has left none; the descriptors of this process are the engines', too.
// `own`: pidfds of this process.
void kill_unserved(const std::set<int>& own) {
  std::vector<int> processes;
  for (const int process : open_pidfds())
    if (!own.contains(process)) processes.push_back(process);
  if (processes.empty()) return;
  log::error("share: killing processes={}: no engine is left to serve their memory",
             processes.size());
  share::kill_processes(processes);
}

// The holder's process: it starts no thread.
Result<int> share_memory(ShareSettings settings) {
  choose_sizes(settings, available_memory_bytes());
  FARPAGE_TRY(options, pager_options(settings.pager));
  FARPAGE_TRY(cluster, start_missing_cluster(settings));
  raise_descriptor_limit();
  const std::set<int> own = open_pidfds();
  auto ended = serve::hold(serve::EndSignals::kPassedOn, [&](StateStore& store, bool takes_over) {
    return status_of_engine(run_engine(settings, options, store, takes_over), takes_over);
  });
  kill_unserved(own);
  return ended;
}

}  // namespace

void add_share(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<ShareSettings>();
  Subcommand subcommand(
      root, "share", "Far memory for the shared memory of VMMs, which hand it over",
      {"farpage share --socket /run/farpage/vm.sock --local 2G \\",
       "    --coordinator http://10.0.0.1:7070 --token-file /etc/farpage/token", "",
       "Processes that map the same memfds (a VMM, its vhost-user devices) connect and send their",
       "userfaultfds, the memfds, and where they have mapped them (docs/protocol.md). --local of",
       "each memory stay here. It ends with the last process. SIGTERM brings all memory back, and",
       "the processes go on; a second one kills them."});
  add_options(subcommand, static_cast<EngineSettings&>(*settings));
  subcommand.text("--socket", settings->socket, "Where the processes connect")
      .required()
      .number("--processes", settings->processes, 1, uffd::SharedWindow::kMaxMembers,
              "That hand each memory over before it is served: they may have touched it already")
      .flag("--stay", settings->stay, "Go on listening when the last process has ended")
      .flag("--stats", settings->stats, "Print what the pager did, at the end, on standard error")
      .text("--stats-file", settings->stats_file, "Write the same as JSON to this file")
      .choice("--output", settings->output, {"text", "json"}, "Format of the ready line",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return share_memory(*settings); });
}

}  // namespace farpage::cli
