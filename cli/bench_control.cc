// farpage bench control: request rate and latency of a coordinator.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/host.h"
#include "bench/control_bench.h"
#include "bench/control_load.h"
#include "bench/fault_bench.h"
#include "cli/bench_settings.h"
#include "cli/child.h"
#include "cli/subcommand.h"
#include "coordinator/api.h"
#include "http/url.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kReadyPatience{60'000};
constexpr int64_t kMaxSimulated = 65'536;
constexpr uint64_t kSlabBytes = uint64_t{2} << 20;  // of simulated nodes

struct ControlSettings {
  BenchSettings bench;
  AmountSettings amount{.iterations = static_cast<int64_t>(bench::ControlOptions{}.iterations),
                        .duration = {}};
  int64_t threads = bench::ControlOptions{}.threads;
  int64_t nodes = 0;  // 0: no simulated cluster
  int64_t regions = bench::ControlLoadOptions{}.regions;
  int64_t leases = bench::ControlLoadOptions{}.leases;
  int64_t watchers = bench::ControlLoadOptions{}.watchers;
  int64_t changes = bench::ControlLoadOptions{}.changes_per_s;
  std::string store_folder;
  std::string program = "/proc/self/exe";
};

// A folder that ends with this object.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create(const std::string& parent) {
    std::string path = parent + "/farpage-bench-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      return fail_errno("--store-folder: making a folder in " + parent);
    return TemporaryFolder(std::move(path));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// `farpage coordinator` with an SQLite store.
class ChildCoordinator final : public bench::MeasuredCoordinator {
 public:
  ChildCoordinator(std::string program, const std::string& folder, int64_t watchers)
      : program_(std::move(program)),
        store_("sqlite:" + folder + "/store.db"),
        max_long_polls_(std::max<int64_t>(watchers, 1)) {}

  Result<uint16_t> start() override {
    FARPAGE_TRY(child,
                Child::start({.arguments = {program_, "coordinator", "--listen",
                                            fmt::format("127.0.0.1:{}", port_), "--store", store_,
                                            "--max-long-polls", std::to_string(max_long_polls_),
                                            "--output", "json"},
                              .name = "farpage",
                              .environment = {{"FARPAGE_LOG_LEVEL", "warning"}},
                              .capture_output = true,
                              .own_process_group = true}));
    child_.emplace(std::move(child));
    auto line = child_->read_line(kReadyPatience);
    if (!line) return fail_with("starting the coordinator", line.error());
    const auto ready = nlohmann::json::parse(*line, nullptr, false);
    if (!ready.is_object() || ready.value("event", "") != "ready")
      return fail(ErrorCode::kUnavailable, "the coordinator said: " + *line);
    FARPAGE_TRY(url, http::parse_url(ready.value("url", "")));
    port_ = url.port;
    return port_;
  }
  void kill() override {
    child_->signal(SIGKILL);
    child_->wait();
    child_.reset();
  }
  int pid() const override { return child_->pid(); }

 private:
  const std::string program_;
  const std::string store_;
  const int64_t max_long_polls_;
  uint16_t port_ = 0;
  std::optional<Child> child_;
};

Result<int> run_load(const ControlSettings& settings, std::optional<Milliseconds> duration) {
  bench::ControlLoadOptions options;
  options.nodes = static_cast<uint32_t>(settings.nodes);
  options.regions = static_cast<uint32_t>(settings.regions);
  options.leases = static_cast<uint32_t>(settings.leases);
  options.watchers = static_cast<uint32_t>(settings.watchers);
  options.changes_per_s = static_cast<uint32_t>(settings.changes);
  if (duration) options.duration = *duration;
  options.slab_bytes = kSlabBytes;
  options.seed = static_cast<uint64_t>(settings.bench.seed);
  options.progress = progress_options(settings.bench);
  FARPAGE_TRY_VOID(bench::validate(options));
  if (!settings.bench.coordinator.empty())
    return fail(ErrorCode::kInvalid,
                "--nodes: it starts a coordinator of its own, and kills it: leave --coordinator "
                "out");
  const char* const temporary = std::getenv("TMPDIR");
  FARPAGE_TRY(folder, TemporaryFolder::create(!settings.store_folder.empty() ? settings.store_folder
                                              : temporary != nullptr         ? temporary
                                                                             : "/tmp"));
  raise_descriptor_limit();
  ChildCoordinator coordinator(settings.program, folder.path(), settings.watchers);
  FARPAGE_TRY(result, bench::measure_control_load(options, coordinator));
  FARPAGE_TRY_VOID(print_report(bench::control_load_report(options, result), settings.bench));
  return kExitOk;
}

Result<int> run(const ControlSettings& settings) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  if (settings.nodes > 0) return run_load(settings, settings.amount.duration);
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  const bench::ControlOptions options{
      .iterations = static_cast<uint64_t>(settings.amount.iterations),
      .duration = duration,
      .threads = static_cast<uint32_t>(settings.threads),
      .slab_bytes = pager.slab_bytes,
      .progress = progress_options(settings.bench)};
  FARPAGE_TRY_VOID(bench::validate(options));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, pager.slab_bytes));
  FARPAGE_TRY(result, bench::measure_control(options, *cluster.client));
  FARPAGE_TRY_VOID(print_report(bench::control_report(options, result), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_control(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ControlSettings>();
  Subcommand subcommand(
      group, "control",
      "Measure rate and latency of requests to a coordinator, by kind. With --nodes: under the "
      "load of a simulated cluster, and how long it takes to start again",
      {"farpage bench control", "farpage bench control --threads 16 -D 10",
       "farpage bench control --coordinator http://10.0.0.1:7070 --output json",
       "farpage bench control --nodes 1000 --regions 2000 --leases 100000 --watchers 1000 -D 30"});
  add_options(subcommand, settings->amount, "Requests to send");
  subcommand
      .number("--threads", settings->threads, 1, bench::kMaxThreads,
              "Threads that send requests at the same time")
      .number("--nodes", settings->nodes, 1, coordinator::kMaxNodes,
              "Simulate so many memory nodes, for a coordinator that is started for this")
      .excludes("--threads")
      .excludes("--iterations")
      .number("--regions", settings->regions, 1, kMaxSimulated, "Regions, with a pager each")
      .needs("--nodes")
      .number("--leases", settings->leases, 1, 1 << 24, "Slabs that these have leased at the start")
      .needs("--nodes")
      .number("--watchers", settings->watchers, 0, kMaxSimulated, "Callers that wait for events")
      .needs("--nodes")
      .number("--changes", settings->changes, 1, 10'000,
              "Leases, releases, new and deleted regions a second, together")
      .needs("--nodes")
      .text("--store-folder", settings->store_folder,
            "Where the coordinator has its SQLite file meanwhile (default: TMPDIR, or /tmp)")
      .needs("--nodes")
      .text("--program", settings->program, "The coordinator's farpage: that of another build")
      .needs("--nodes");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
