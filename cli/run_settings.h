// The options of `farpage run`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/subcommand.h"
#include "pager/options.h"
#include "rdma/verbs/verbs.h"
#include "serve/budget_group.h"

namespace farpage::cli {

// The options of a pager, shared by every subcommand that runs one.
struct PagerSettings {
  uint64_t local_bytes = uint64_t{64} << 20;
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  int64_t replicas = 1;
  std::string spread_by;
  std::string borrower;
  int64_t workers = 0;
  bool no_pin = false;
  int64_t prefetch_depth = 64;
  std::string compressed = "off";
  std::string repair_rate = "auto";
  std::string checksums = "on";
  std::string scrub = "off";
  std::string on_full = "sigbus";
  int64_t high_water_percent = 0;
  int64_t low_water_percent = 0;
  Milliseconds fault_deadline{5000};
  std::string transports = "auto";
  std::string poll_mode = "adaptive";
  Milliseconds operation_timeout{1000};
  std::string device;
  int64_t device_port = 0;
  int64_t gid_index = -1;
  int64_t mtu_bytes = 0;
  int64_t max_rd_atomic = 0;
  int64_t max_send_wr = 64;
  int64_t cq_depth = 0;
  int64_t timeout_exponent = 14;
  int64_t retry_count = 3;
};

// kPerftest: --device, --device-port and --gid-index have the short forms -d, -i and -x.
enum class ShortFlags : bool { kNone, kPerftest };
void add_options(Subcommand& subcommand, PagerSettings& settings,
                 ShortFlags short_flags = ShortFlags::kNone);
Result<pager::PagerOptions> pager_options(const PagerSettings& settings);
rdma::VerbsOptions verbs_options(const PagerSettings& settings);
// One for each transport that the settings allow and this build has, in order of preference. With
// `auto`, transports that cannot work on this host are omitted; a named one that cannot work is an
// error.
Result<std::vector<std::unique_ptr<rdma::Transport>>> make_transports(
    const PagerSettings& settings);

// The device options as arguments of `farpage node`, for the embedded nodes.
std::vector<std::string> device_words(const PagerSettings& settings);

// The options of an engine with its cluster.
struct EngineSettings {
  PagerSettings pager{.slab_bytes = 0};  // 0: see choose_sizes()
  std::string coordinator;               // empty: an embedded one
  std::string token_file;
  uint64_t lend_bytes = 0;  // of the embedded node; 0: half of the free memory
  std::string spill;        // see parse_spill(); empty: no file
};

void add_options(Subcommand& subcommand, EngineSettings& settings);
// Puts sizes in place of the zeros of --slab and --lend. An embedded node has at least 128 slabs
// where it can: every process of a program takes at least one. In place of its default the deadline
// of a fault is a minute with --spill, and 20 s with several coordinators.
void choose_sizes(EngineSettings& settings, uint64_t available_bytes);
// What the kernel could give to programs now.
uint64_t available_memory_bytes();

struct RunSettings : EngineSettings {
  uint64_t local_each_bytes = 0;  // 0: all processes share pager.local_bytes
  std::string host_pager;         // its socket; empty: this process has an engine of its own
  bool injects = false;           // an agent, in place of preloading the shim
  uint64_t window_bytes = uint64_t{64} << 30;
  uint64_t mmap_min_bytes = uint64_t{128} << 10;
  std::string allocator = "auto";
  std::string fork = "auto";
  bool stats = false;
  std::string stats_file;
  std::string trace_file;  // empty: touches are not recorded
  std::vector<std::string> command;

  serve::BudgetScope budget_scope() const {
    return local_each_bytes == 0 ? serve::BudgetScope::kGroup : serve::BudgetScope::kEach;
  }
  uint64_t local_bytes() const {
    return local_each_bytes == 0 ? pager.local_bytes : local_each_bytes;
  }
};

void add_options(Subcommand& subcommand, RunSettings& settings);
Result<pager::PagerOptions> pager_options(const RunSettings& settings);
Status check(const RunSettings& settings);
// `may_share`: this user gets fork events. Logs a warning when `auto` falls back to kRefuse.
// kDenied: `share` was requested without fork events.
Result<pager::ForkMode> fork_mode(const RunSettings& settings, bool may_share);

}  // namespace farpage::cli
