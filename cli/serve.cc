// farpage serve: restores the guests of a host from images. Constructs and connects its parts.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/host.h"
#include "base/log.h"
#include "base/size.h"
#include "base/state_store.h"
#include "cli/engine_parts.h"
#include "cli/guest_agent.h"
#include "cli/image_settings.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "serve/holder.h"
#include "serve/pager_messages.h"
#include "serve/served_state.h"
#include "snapshot/snapshot_pager.h"
#include "snapshot/snapshot_state.h"

namespace farpage::cli {
namespace {

struct ServeSettings : ClusterSettings {
  std::string image;
  std::string socket;
  std::string socket_dir;
  uint64_t cache_bytes = uint64_t{1} << 30;
  uint64_t local_bytes = 0;  // 0: guests have no budget
  int64_t workers = 0;
  int64_t replay_threads = 2;
  std::string recorded_set = "off";
  bool prefetch_all = false;
  Milliseconds fault_deadline{5000};
  int64_t allow_uid = -1;
  std::string stats_file;
  std::string output = "text";
};

// Prints the ready line, for which scripts wait.
void print_serving(const ServeSettings& settings) {
  const std::string& where = settings.socket.empty() ? settings.socket_dir : settings.socket;
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"}, {"socket", where}, {"image", settings.image}};
    fmt::print("{}\n", ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("snapshot pager ready: {}, {} of cache\n", where, format_size(settings.cache_bytes));
  }
  std::fflush(stdout);
}

Status prepare_upgrade(const serve::Upgrade& upgrade, const ucred& peer, StateStore& store) {
  // The owner of the sockets of VMMs may be another one (--allow-uid).
  if (peer.uid != 0 && peer.uid != ::geteuid())
    return fail(ErrorCode::kDenied, "only root and the user of this farpage serve may upgrade it");
  if (upgrade.state_version != snapshot::kStateVersion)
    return fail(ErrorCode::kUnsupported,
                "what this farpage serve keeps of its guests is unknown to that build: start "
                "another one, and let this one end with its guests");
  if (::access(upgrade.binary.c_str(), X_OK) != 0)
    return fail_errno("the binary " + upgrade.binary);
  return serve::put_upgrade(store, upgrade.binary);
}

// What `farpage upgrade --serve` asks, as it asks a pager.
std::optional<snapshot::Answer> answer_upgrade(std::string_view line, const ucred& peer,
                                               size_t guests, StateStore& store) {
  if (!serve::is_request(line)) return std::nullopt;
  const auto request = serve::request_from_line(line);
  if (!request) return snapshot::Answer{serve::to_line(request.error())};
  if (std::holds_alternative<serve::AskStatus>(*request))
    return snapshot::Answer{serve::to_line(serve::PagerStatus{.engine = ::getpid(),
                                                              .binary = serve::own_binary(),
                                                              .local_bytes = 0,
                                                              .runs = {},
                                                              .guests = guests})};
  const auto* upgrade = std::get_if<serve::Upgrade>(&*request);
  const Status prepared =
      upgrade == nullptr
          ? fail(ErrorCode::kUnsupported, "this is a farpage serve, which serves no programs")
          : prepare_upgrade(*upgrade, peer, store);
  if (!prepared) return snapshot::Answer{serve::to_line(prepared.error())};
  return snapshot::Answer{serve::accepted_line(), serve::ask_for_upgrade};
}

Result<snapshot::FarOptions> far_options(const ServeSettings& settings) {
  PagerSettings engine = settings.link;
  engine.local_bytes = settings.local_bytes;
  engine.workers = settings.workers;
  engine.fault_deadline = settings.fault_deadline;
  FARPAGE_TRY(options, pager_options(engine));
  return snapshot::FarOptions{.pager = std::move(options),
                              .give_agent = give_agent,
                              .staging_pages = guest_staging_pages()};
}

Result<snapshot::SnapshotOptions> snapshot_options(const ServeSettings& settings,
                                                   StateStore& store) {
  snapshot::SnapshotOptions options;
  options.answer_others = [&store](std::string_view line, const ucred& peer, size_t guests) {
    return answer_upgrade(line, peer, guests, store);
  };
  options.cache_bytes = settings.cache_bytes;
  options.workers = static_cast<uint32_t>(settings.workers);
  options.replay_threads = static_cast<uint32_t>(settings.replay_threads);
  if (settings.recorded_set != "off") options.recorded_set = settings.recorded_set;
  options.prefetch_all = settings.prefetch_all;
  options.reads = {.deadline = settings.fault_deadline,
                   .operation_timeout = settings.link.operation_timeout};
  options.channel = channel_options(settings.link);
  if (settings.allow_uid >= 0) options.allowed_uid = static_cast<uid_t>(settings.allow_uid);
  options.stats_file = settings.stats_file;
  options.request_folder = settings.socket_dir;
  if (settings.local_bytes > 0) {
    FARPAGE_TRY(far, far_options(settings));
    options.far = std::move(far);
    options.cache_bytes = snapshot::PageCache::kMinBytes;
  }
  return options;
}

Status listen(const ServeSettings& settings, snapshot::SnapshotPager& pager) {
  if (!settings.socket_dir.empty()) return pager.listen_for_requests();
  FARPAGE_TRY(name, image_name(settings.image, "--image"));
  return pager.listen(settings.socket, name);
}

// Until a signal.
Status serve_until_signal(const ServeSettings& settings, snapshot::SnapshotPager& pager,
                          ShutdownSignals& signals) {
  if (!pager.has_listener()) {
    FARPAGE_TRY_VOID(listen(settings, pager));
    print_serving(settings);
  }
  FARPAGE_TRY_VOID(pager.run(signals.descriptor()));
  const int number = signals.wait();
  pager.stop_accepting();
  if (pager.guests() > 0)
    log::warn(
        "serve: stopping signal={} waits_for_sessions={}: the next signal ends it, and then "
        "their VMMs are killed",
        number, pager.guests());
  return {};
}

// The engine's process.
Result<int> run_engine(const ServeSettings& settings, StateStore& store) {
  FARPAGE_TRY(options, snapshot_options(settings, store));
  FARPAGE_TRY(state, snapshot::SnapshotState::create(store));
  // The signal of a predecessor that was told to end is not repeated: the next one ends this one.
  std::optional<ShutdownSignals> signals;
  if (!state.is_stopping()) {
    FARPAGE_TRY(blocked, ShutdownSignals::create());
    signals.emplace(std::move(blocked));
  }
  FARPAGE_TRY(parts, ClusterParts::create(settings));
  FARPAGE_TRY(pager, snapshot::SnapshotPager::create(std::move(options), *parts.images,
                                                     *parts.client, parts.transports, store));
  if (signals) FARPAGE_TRY_VOID(serve_until_signal(settings, *pager, *signals));
  FARPAGE_TRY_VOID(pager->drain());
  log::info("serve: stopped stats={}", pager->stats());
  return kExitOk;
}

// The holder's process: it starts no thread.
Result<int> serve_images(const ServeSettings& settings) {
  const bool by_request = !settings.socket_dir.empty();
  if (by_request == !settings.socket.empty() || by_request == !settings.image.empty())
    return fail(ErrorCode::kInvalid,
                "--image NAME and --socket PATH, or --socket-dir DIR: one of the two is needed");
  if (settings.local_bytes > 0) {
    if (settings.recorded_set != "off" || settings.prefetch_all)
      return fail(
          ErrorCode::kInvalid,
          "--local: with a budget no page is placed ahead (--recorded-set, --prefetch-all)");
    FARPAGE_TRY(checked, far_options(settings));
    (void)checked;
  }
  raise_descriptor_limit();  // also of the engines: each guest needs descriptors
  const auto noted = [](StateStore& store) -> Result<std::set<int>> {
    FARPAGE_TRY(state, snapshot::SnapshotState::create(store));
    return state.descriptors();
  };
  return serve::hold(serve::EndSignals::kPassedOn,
                     [&](StateStore& store, bool takes_over) {
                       return status_of_engine(run_engine(settings, store), takes_over);
                     },
                     {.noted = noted, .and_unnoted = false});
}

}  // namespace

void add_serve(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<ServeSettings>();
  Subcommand subcommand(
      root, "serve", "Restore the guests of this host from images, page by page",
      {"farpage serve --image ubuntu --socket /run/farpage/ubuntu.sock --cache 8G \\",
       "    --coordinator http://10.0.0.1:7070 --token-file /etc/farpage/token",
       "farpage serve --socket-dir /run/farpage --recorded-set /var/lib/farpage/sets \\",
       "    --coordinator http://10.0.0.1:7070", "",
       "A VMM connects and sends its regions and its userfaultfd, as Firecracker does with",
       "mem_backend {\"backend_type\": \"Uffd\", \"backend_path\": SOCKET}."});
  add_cluster_options(subcommand, *settings);
  subcommand.text("--image", settings->image, "Image that guests are restored from")
      .text("--socket", settings->socket, "Where VMMs connect, any number of them")
      .text("--socket-dir", settings->socket_dir,
            "In place of both: DIR/control.sock takes requests for sockets, with their image")
      .size("--cache", settings->cache_bytes, "Pages kept here for all guests together")
      .size(
          "--local", settings->local_bytes,
          "The budget of each VM: so much of its guest's memory stays here, and no cache is kept; "
          "what the guest writes leaves, too, to memory of the nodes. 0: all stays here that the "
          "guest has touched")
      .number("--replicas", settings->link.replicas, 1, coordinator::kMaxReplicas,
              "With --local: copies of each page that leaves, on as many nodes")
      .size("--slab", settings->link.slab_bytes,
            "With --local: unit of borrowing; must be that of the nodes")
      .text(
          "--repair-rate", settings->link.repair_rate,
          "With --local: how fast lost replicas are made again: auto, max, off, or bytes a second")
      .number("--workers", settings->workers, 0, snapshot::kMaxSnapshotWorkers,
              "Fault threads; 0: one for each CPU")
      .text(
          "--recorded-set", settings->recorded_set,
          "File of the pages that guests touch after a restore: kept up to date, and placed ahead "
          "of the next guest (with --socket-dir: a folder of them); off")
      .flag("--prefetch-all", settings->prefetch_all,
            "Place all other pages in the background, too")
      .number("--replay-threads", settings->replay_threads, 1, snapshot::kMaxReplayThreads,
              "Threads that place pages ahead")
      .duration("--fault-deadline", settings->fault_deadline,
                "A fault that takes longer ends in SIGBUS")
      .number("--allow-uid", settings->allow_uid, -1, int64_t{1} << 31,
              "Owner of the sockets, whose VMMs are served beside root's and one's own; -1: none")
      .text("--stats-file", settings->stats_file,
            "Write what was done as JSON to this file, whenever a guest has ended")
      .choice("--output", settings->output, {"text", "json"}, "Format of the ready line",
              Subcommand::Scope::kShared);
  add_link_options(subcommand, settings->link);
  subcommand.on_run(invocation, [settings] { return serve_images(*settings); });
}

}  // namespace farpage::cli
