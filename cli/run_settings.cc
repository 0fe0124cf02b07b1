#include "cli/run_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <fstream>

#include "base/log.h"
#include "base/size.h"
#include "cli/node_settings.h"
#include "cli/spill.h"
#include "http/json_reader.h"
#include "http/url.h"

namespace farpage::cli {
uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes >> unit)
    if (name == "MemAvailable:") return kilobytes << 10;
  return uint64_t{1} << 30;
}

void add_options(Subcommand& subcommand, PagerSettings& settings, ShortFlags short_flags) {
  const auto named = [short_flags](const char* short_form, const char* long_form) {
    const bool both = short_flags == ShortFlags::kPerftest;
    return both ? fmt::format("{},{}", short_form, long_form) : std::string(long_form);
  };
  subcommand.size("--local", settings.local_bytes, "Far memory resident on this host")
      .number("--replicas", settings.replicas, 1, coordinator::kMaxReplicas,
              "Copies of each page, on as many nodes")
      .text(
          "--spread-by", settings.spread_by,
          "Label of nodes, as zone: the copies are on nodes with different values of it (default: "
          "what the coordinator was told)")
      .text("--borrower", settings.borrower,
            "Name for the coordinator's --quota and --keep-free (default: none)")
      .size("--slab", settings.slab_bytes,
            "Unit of borrowing; must be that of the nodes (run: 0 is 64M, or with an embedded node "
            "1/128 of --lend, from 2M to 64M)")
      .duration("--fault-deadline", settings.fault_deadline,
                "A fault that takes longer ends in SIGBUS (5s means a minute with --spill, 20s "
                "with several coordinators)")
      .number(
          "--workers", settings.workers, 0, pager::kMaxWorkers,
          "Fault threads; 0: one for each CPU (run: one in all where a TLB flush stops all CPUs, "
          "see farpage doctor)")
      .flag("--no-pin", settings.no_pin, "Do not pin the fault threads to CPUs")
      .number("--prefetch", settings.prefetch_depth, 0, pager::kMaxPrefetchDepth,
              "Pages of a prefetch batch; 0: off")
      .text("--repair-rate", settings.repair_rate,
            "How fast lost replicas are made again: auto (a quarter of what the link gives), max, "
            "off, or so many bytes a second, such as 200M")
      .choice("--checksums", settings.checksums, {"on", "off"},
              "Check each page that is read against a checksum from when it was written")
      .text("--scrub", settings.scrub,
            "Read what the nodes hold, only to check it, at this many bytes a second, such as 4M; "
            "or off")
      .choice("--on-full", settings.on_full, {"sigbus", "wait"},
              "When no node lends a slab and --local is used up: a fault ends in SIGBUS, or waits")
      .text("--compressed", settings.compressed,
            "Share of --local for compressed copies of remote pages, such as 30%; auto: up to 30% "
            "where it helps; off")
      .number(
          "--high-water", settings.high_water_percent, 0, 100,
          "Eviction starts above this share of --local, in percent; 0: as near to 100 as faults "
          "find room, at least 97")
      .number("--low-water", settings.low_water_percent, 0, 100,
              "Eviction stops at this share, in percent; 0: in the same way, at least 94")
      .text("--transport", settings.transports,
            "auto, or a list such as tcp,shm, tried in this order")
      .choice("--poll-mode", settings.poll_mode, {"adaptive", "busy", "event"},
              "How to wait for completions and for the next fault")
      .duration("--operation-timeout", settings.operation_timeout,
                "A READ or WRITE that takes longer is retried on another replica")
      .text(named("-d", "--device"), settings.device,
            "RDMA device (default: the first with an active port)")
      .number(named("-i", "--device-port"), settings.device_port, 0, 255,
              "Port of the device; 0: first active")
      .number(named("-x", "--gid-index"), settings.gid_index, -1, 255,
              "GID; -1: RoCE v2, IPv4 first")
      .number("--mtu", settings.mtu_bytes, 0, 4096, "Upper limit of the path MTU; 0: the port's")
      .number("--max-rd-atomic", settings.max_rd_atomic, 0, 255,
              "Upper limit of READs in flight on a queue pair; 0: the device's")
      .number("--max-send-wr", settings.max_send_wr, 1, 4096, "Operations in flight on a channel")
      .number("--cq-depth", settings.cq_depth, 0, 65536, "Completion queue; 0: --max-send-wr")
      .number("--timeout", settings.timeout_exponent, 1, 31, "Each attempt waits 4.096 us * 2^N")
      .number("--retry-cnt", settings.retry_count, 0, 6, "Attempts after the first");
}

Result<pager::PagerOptions> pager_options(const PagerSettings& settings) {
  pager::PagerOptions options;
  options.local_bytes = settings.local_bytes;
  options.slab_bytes = settings.slab_bytes;
  options.replicas = static_cast<uint32_t>(settings.replicas);
  if (!settings.spread_by.empty() && !http::is_name(settings.spread_by))
    return fail(ErrorCode::kInvalid,
                fmt::format("--spread-by: '{}' is not the key of a label", settings.spread_by));
  options.spread_by = settings.spread_by;
  if (!settings.borrower.empty() && !http::is_name(settings.borrower))
    return fail(
        ErrorCode::kInvalid,
        fmt::format("--borrower: '{}' is not a name: 1 to {} letters, digits, dots, _ and -",
                    settings.borrower, http::kMaxNameBytes));
  options.borrower = settings.borrower;
  options.workers = static_cast<uint32_t>(settings.workers);
  options.pin_workers = !settings.no_pin;
  options.prefetch_depth = static_cast<uint32_t>(settings.prefetch_depth);
  options.adaptive_water_marks =
      settings.high_water_percent == 0 && settings.low_water_percent == 0;
  // The other mark follows one that is given alone.
  const uint32_t between = options.high_water_percent - options.low_water_percent;
  if (settings.high_water_percent != 0)
    options.high_water_percent = static_cast<uint32_t>(settings.high_water_percent);
  options.low_water_percent =
      settings.low_water_percent != 0
          ? static_cast<uint32_t>(settings.low_water_percent)
          : options.high_water_percent - std::min(between, options.high_water_percent - 1);
  if (settings.high_water_percent == 0)
    options.high_water_percent = std::max(options.high_water_percent, options.low_water_percent);
  FARPAGE_TRY(compressed, pager::parse_compressed(settings.compressed));
  options.compressed = compressed;
  FARPAGE_TRY(repair_rate, pager::parse_repair_rate(settings.repair_rate));
  options.repair_rate = repair_rate;
  options.checksums = settings.checksums == "on";
  FARPAGE_TRY(scrub, pager::parse_scrub_rate(settings.scrub));
  options.scrub_bytes_per_second = scrub;
  if (scrub != 0 && !options.checksums)
    return fail(ErrorCode::kInvalid, "--scrub: there is nothing to check with --checksums off");
  options.on_full = settings.on_full == "wait" ? pager::OnFull::kWait : pager::OnFull::kSigbus;
  options.fault_deadline = settings.fault_deadline;
  FARPAGE_TRY(choice, rdma::parse_transports(settings.transports, "--transport"));
  options.transports = choice.kinds;
  rdma::ChannelOptions& channel = options.channel;
  channel.poll_mode = *rdma::poll_mode_from(settings.poll_mode);
  channel.operation_timeout = settings.operation_timeout;
  channel.operations_in_flight = static_cast<uint32_t>(settings.max_send_wr);
  FARPAGE_TRY_VOID(pager::validate(options));
  return options;
}

rdma::VerbsOptions verbs_options(const PagerSettings& settings) {
  return {.device = settings.device,
          .device_port = static_cast<uint8_t>(settings.device_port),
          .gid_index = static_cast<int>(settings.gid_index),
          .mtu_bytes = static_cast<uint32_t>(settings.mtu_bytes),
          .max_rd_atomic = static_cast<uint32_t>(settings.max_rd_atomic),
          .cq_depth = static_cast<uint32_t>(settings.cq_depth),
          .timeout_exponent = static_cast<uint8_t>(settings.timeout_exponent),
          .retry_count = static_cast<uint8_t>(settings.retry_count)};
}

std::vector<std::string> device_words(const PagerSettings& settings) {
  std::vector<std::string> words = {"--device-port", std::to_string(settings.device_port),
                                    "--gid-index",   std::to_string(settings.gid_index),
                                    "--mtu",         std::to_string(settings.mtu_bytes)};
  if (!settings.device.empty()) words.insert(words.end(), {"--device", settings.device});
  return words;
}

Result<std::vector<std::unique_ptr<rdma::Transport>>> make_transports(
    const PagerSettings& settings) {
  FARPAGE_TRY(choice, rdma::parse_transports(settings.transports, "--transport"));
  return rdma::make_transports(choice, verbs_options(settings));
}

void add_options(Subcommand& subcommand, EngineSettings& settings) {
  add_options(subcommand, settings.pager);
  subcommand
      .text("--coordinator", settings.coordinator,
            "URL of the coordinator; of several all, with commas between (default: an embedded "
            "one, with a "
            "node on this host)",
            Subcommand::Scope::kShared)
      .text("--token-file", settings.token_file, "File with the coordinator's bearer token",
            Subcommand::Scope::kShared)
      .size("--lend", settings.lend_bytes,
            "What the embedded node lends; 0: half of the free memory")
      .text("--spill", settings.spill,
            "FOLDER,size=SIZE: pages for which no node has room go to a nameless file there, and "
            "back when one has");
}

void add_options(Subcommand& subcommand, RunSettings& settings) {
  add_options(subcommand, static_cast<EngineSettings&>(settings));
  subcommand
      .text("--pager", settings.host_pager,
            "Socket of the farpage pager of this host, which serves the program in place of a "
            "pager of its own",
            Subcommand::Scope::kShared)
      .excludes_all_but({"--local", "--coordinator", "--token-file"})
      .size("--local-each", settings.local_each_bytes,
            "In place of --local, which all processes of the program share: a budget for each one")
      .excludes("--local")
      .excludes("--pager")
      .size("--window", settings.window_bytes, "Address space reserved for far memory")
      .size("--mmap-min", settings.mmap_min_bytes, "Smaller anonymous mappings stay local")
      .text("--allocator", settings.allocator,
            "What serves malloc, unless the program brings its own: mimalloc, jemalloc, tcmalloc, "
            "the path of a library, or none; auto: mimalloc, or another one that is installed")
      .choice("--fork", settings.fork, {"auto", "share", "pull-in", "refuse"},
              "When a program forks while pages of it are remote: share them with the child, fetch "
              "all of them first, or let fork() fail; auto: share, or refuse without the privilege")
      .flag(
          "--inject", settings.injects,
          "Inject an agent at the start, as farpage attach does, and preload nothing: for programs "
          "whose allocator must not be replaced (static ones and those with a sanitizer get it "
          "anyway); programs that it executes have no far memory")
      .excludes("--allocator")
      .excludes("--fork")
      .excludes("--window")
      .flag("--stats", settings.stats, "Print what the pager did, at the end, on standard error")
      .text("--stats-file", settings.stats_file, "Write the same as JSON to this file")
      .text("--record-trace", settings.trace_file,
            "Write the touches of the process with the most of them to this file, for `replay`; a "
            "small --local hides few of them; prefetch is off")
      .excludes("--pager")
      .command_line(settings.command, "The program and its arguments");
}

void choose_sizes(EngineSettings& settings, uint64_t available_bytes) {
  constexpr uint64_t kSlabs = 128;
  constexpr Milliseconds kDiskDeadline{60000};      // a disk that others use stands for seconds
  constexpr Milliseconds kElectionDeadline{20000};  // slabs are leased when another one leads
  uint64_t& slab = settings.pager.slab_bytes;
  Milliseconds& deadline = settings.pager.fault_deadline;
  if (deadline == PagerSettings{}.fault_deadline) {
    const auto coordinators = http::parse_urls(settings.coordinator);
    if (!settings.spill.empty())
      deadline = kDiskDeadline;
    else if (coordinators && coordinators->size() > 1)
      deadline = kElectionDeadline;
  }
  if (!settings.coordinator.empty()) {
    if (slab == 0) slab = coordinator::kDefaultSlabBytes;
    return;
  }
  if (settings.lend_bytes == 0) settings.lend_bytes = available_bytes / 2;
  if (slab == 0)
    slab = std::clamp(std::bit_floor(settings.lend_bytes / kSlabs), coordinator::kMinSlabBytes,
                      coordinator::kDefaultSlabBytes);
}

Result<pager::ForkMode> fork_mode(const RunSettings& settings, bool may_share) {
  const std::optional<pager::ForkMode> chosen = pager::fork_mode_from(settings.fork);  // or auto
  if (chosen && *chosen != pager::ForkMode::kShare) return *chosen;
  if (may_share) return pager::ForkMode::kShare;
  if (chosen)
    return fail(ErrorCode::kDenied,
                "--fork=share: this user gets no fork events of userfaultfd; run as root or with "
                "CAP_SYS_PTRACE, or choose --fork=pull-in or --fork=refuse");
  log::warn(
      "run: no_fork_events: without CAP_SYS_PTRACE a fork fails while pages of the program are "
      "remote; --fork=pull-in fetches all of them first");
  return pager::ForkMode::kRefuse;
}

Result<pager::PagerOptions> pager_options(const RunSettings& settings) {
  PagerSettings pager = settings.pager;
  pager.local_bytes = settings.local_bytes();
  FARPAGE_TRY(options, pager_options(pager));
  options.record_touches = !settings.trace_file.empty();
  if (options.record_touches) options.prefetch_depth = 0;
  return options;
}

Status check(const RunSettings& settings) {
  if (settings.window_bytes < settings.local_bytes() || settings.window_bytes > (uint64_t{1} << 42))
    return fail(ErrorCode::kInvalid, fmt::format("--window: from --local ({}) to 4T",
                                                 format_size(settings.local_bytes())));
  if (settings.mmap_min_bytes < kPageBytes)
    return fail(ErrorCode::kInvalid, "--mmap-min: at least 4096");
  if (!settings.spill.empty()) {
    FARPAGE_TRY_VOID(parse_spill(settings.spill));
  }
  return {};
}

}  // namespace farpage::cli
