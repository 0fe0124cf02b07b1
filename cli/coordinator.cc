// farpage coordinator: the control plane. Constructs and connects the parts of a coordinator.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "cli/coordinator_settings.h"
#include "cli/host_port.h"
#include "cli/secrets.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "coordinator/agent_client.h"
#include "coordinator/client.h"
#include "coordinator/etcd_election.h"
#include "coordinator/etcd_store.h"
#include "coordinator/service.h"
#include "coordinator/sqlite_store.h"
#include "http/url.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kBackupTimeout{60'000};

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

Result<std::unique_ptr<coordinator::Service>> make_service(const std::string& store_text,
                                                           coordinator::ServiceOptions options,
                                                           const Clock& clock) {
  const auto make_agents = [token = options.token] {
    return coordinator::make_http_agent_client({token});
  };
  if (const auto urls = etcd_of(store_text)) {
    FARPAGE_TRY(etcd, open_etcd(*urls));
    return coordinator::Service::create_elected(
        std::move(options), coordinator::make_etcd_election(std::move(etcd)), make_agents, clock);
  }
  FARPAGE_TRY(store, open_store(store_text));
  return coordinator::Service::create(std::move(options), std::move(store), make_agents(), clock);
}

Result<int> serve(const CoordinatorSettings& settings) {
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(options, service_options(settings, token));
  FARPAGE_TRY(signals, ShutdownSignals::create());
  raise_descriptor_limit();
  const SteadyClock clock;
  FARPAGE_TRY(service, make_service(settings.store, std::move(options), clock));
  print_ready(settings, service->url());
  const int signal_number = signals.wait();
  log::info("coordinator stopping signal={}", signal_number);
  service->stop();
  return kExitOk;
}

// The host to call for what listens there.
std::string callable(const HostPort& listen) {
  if (!is_wildcard(listen)) return listen.host;
  return listen.host.find(':') != std::string::npos ? "::1" : "127.0.0.1";
}

constexpr std::string_view kSqlite = "sqlite:";
// What the files of a store of SQLite have behind its path.
constexpr std::array kPartsOfSqlite{"", "-wal", "-shm"};

// A coordinator that runs would go on with what it has open, and lose it at its end.
Status check_is_no_store(const std::string& backup, const std::string& store) {
  std::error_code none;
  for (const char* part : kPartsOfSqlite)
    if (std::filesystem::equivalent(backup, store + part, none))
      return fail(ErrorCode::kInvalid, "--backup: " + backup + " is the store itself");
  return {};
}

Result<std::string> copy_of_etcd(const std::string& urls) {
  FARPAGE_TRY(etcd, open_etcd(urls));
  FARPAGE_TRY(snapshot, coordinator::read_etcd_store(*etcd, coordinator::kEtcdPrefix));
  return coordinator::make_sqlite_file(snapshot);
}

// That of the file, or what the coordinator that has it locked says.
Result<std::string> copy_of_store(const CoordinatorSettings& settings) {
  if (const auto urls = etcd_of(settings.store)) return copy_of_etcd(*urls);
  if (!settings.store.starts_with(kSqlite))
    return fail(ErrorCode::kInvalid,
                "--backup: only --store sqlite:PATH and etcd:URL have something to copy");
  const std::string path = settings.store.substr(kSqlite.size());
  FARPAGE_TRY_VOID(check_is_no_store(settings.backup, path));
  if (::access(path.c_str(), F_OK) != 0) return fail_errno("--backup: store " + path);
  auto store = open_store(settings.store);
  if (store) return (*store)->copy();
  if (store.error().code != ErrorCode::kConflict) return tl::unexpected(store.error());
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(listen, parse_host_port(settings.listen, "--listen"));
  const std::string url = http::to_text({callable(listen), listen.port});
  FARPAGE_TRY(client, coordinator::Client::create({url, token, kBackupTimeout}));
  auto copy = client->get("/v1/store");
  if (!copy)
    return fail_with(fmt::format("--backup: store {} is in use, and the coordinator at {} does not "
                                 "give a copy (are --listen and --token-file its own?)",
                                 path, url),
                     copy.error());
  return copy;
}

Result<int> back_up(const CoordinatorSettings& settings) {
  FARPAGE_TRY(copy, copy_of_store(settings));
  if (const Status written = write_whole(settings.backup, std::as_bytes(std::span(copy))); !written)
    return fail_with("--backup", written.error());
  fmt::print("{}: {} bytes of {}\n", settings.backup, copy.size(), settings.store);
  return kExitOk;
}

Status restore_into(const std::string& store, const coordinator::Snapshot& snapshot) {
  if (const auto urls = etcd_of(store)) {
    FARPAGE_TRY(etcd, open_etcd(*urls));
    return coordinator::fill_etcd_store(etcd, coordinator::kEtcdPrefix, snapshot);
  }
  if (!store.starts_with(kSqlite))
    return fail(ErrorCode::kInvalid,
                "--restore: only --store sqlite:PATH and etcd:URL keep what is restored");
  const std::string path = store.substr(kSqlite.size());
  // SQLite would apply a write-ahead log that is left to what is restored.
  for (const char* part : kPartsOfSqlite)
    if (::access((path + part).c_str(), F_OK) == 0)
      return fail(
          ErrorCode::kConflict,
          fmt::format("{}{} exists: move {}, and its -wal and -shm, away first", path, part, path));
  FARPAGE_TRY(bytes, coordinator::make_sqlite_file(snapshot));
  return write_whole(path, std::as_bytes(std::span(bytes)));
}

// A store that is opened is written to, too: a copy of it is opened.
Result<coordinator::Snapshot> snapshot_of(const std::string& file) {
  if (::access((file + "-wal").c_str(), F_OK) == 0)
    return fail(ErrorCode::kConflict, file + " has changes in " + file +
                                          "-wal, or is in use: give a copy that was made "
                                          "with --backup");
  std::error_code failed;
  std::string folder = std::filesystem::temp_directory_path(failed) / "farpage-restore-XXXXXX";
  if (failed || ::mkdtemp(folder.data()) == nullptr)
    return fail(ErrorCode::kIo, "making a folder for a copy: set TMPDIR to one that exists");
  const std::string copy = folder + "/" + std::filesystem::path(file).filename().string();
  std::filesystem::copy_file(file, copy, failed);
  auto snapshot = [&]() -> Result<coordinator::Snapshot> {
    if (failed) return fail(ErrorCode::kIo, file + ": " + failed.message());
    FARPAGE_TRY(store, coordinator::open_sqlite_store(copy));
    return store->load();
  }();
  std::filesystem::remove_all(folder, failed);
  if (snapshot) return snapshot;
  Error error = snapshot.error();
  if (const size_t at = error.context.find(copy); at != std::string::npos)
    error.context.replace(at, copy.size(), file);
  return tl::unexpected(std::move(error));
}

Result<int> restore(const CoordinatorSettings& settings) {
  if (!settings.backup.empty())
    return fail(ErrorCode::kInvalid, "--restore and --backup: give one of them");
  // It would be created.
  if (::access(settings.restore.c_str(), F_OK) != 0)
    return fail_errno("--restore: " + settings.restore);
  const auto restored = snapshot_of(settings.restore);
  if (!restored) return fail_with("--restore", restored.error());
  const coordinator::Snapshot& snapshot = *restored;
  if (const Status written = restore_into(settings.store, snapshot); !written)
    return fail_with("--restore", written.error());
  fmt::print("{}: {} nodes, {} regions, {} leases of {}\n", settings.store, snapshot.nodes.size(),
             snapshot.regions.size(), snapshot.leases.size(), settings.restore);
  return kExitOk;
}

}  // namespace

void add_coordinator(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<CoordinatorSettings>();
  Subcommand subcommand(
      root, "coordinator", "Run the coordinator, which assigns the memory of nodes to programs",
      {"farpage coordinator", "farpage coordinator --store sqlite:/var/lib/farpage/coordinator.db",
       "farpage coordinator --listen 0.0.0.0:7070 --token-file /etc/farpage/token",
       "farpage coordinator --store sqlite:/var/lib/farpage/coordinator.db --backup copy.db",
       "farpage coordinator --listen 10.0.0.1:7070 --token-file token \\",
       "    --store etcd:http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379",
       "farpage coordinator --store etcd:http://10.0.0.1:2379 --restore copy.db"});
  add_options(subcommand, *settings);
  subcommand.on_run(invocation, [settings] {
    if (!settings->restore.empty()) return restore(*settings);
    return settings->backup.empty() ? serve(*settings) : back_up(*settings);
  });
}

}  // namespace farpage::cli
