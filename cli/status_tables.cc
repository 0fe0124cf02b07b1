#include "cli/status_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/size.h"
#include "cli/table.h"

namespace farpage::cli {
namespace {

using coordinator::NodeInfo;
using coordinator::RegionInfo;

std::string transports_of(const NodeInfo& node) {
  std::vector<rdma::TransportKind> kinds;
  for (const rdma::TransportAddress& address : node.join.transports) kinds.push_back(address.kind);
  return names_of(kinds);
}

// The last heartbeat told; "-": not this one. --output json has all counters.
std::string counter_of(const coordinator::Counters& counters, const std::string& name,
                       std::string (*format)(uint64_t)) {
  const auto counter = counters.find(name);
  return counter == counters.end() ? "-" : format(counter->second);
}

std::string labels_of(const NodeInfo& node) {
  std::vector<std::string> labels;
  for (const auto& [key, value] : node.join.labels) labels.push_back(key + "=" + value);
  return labels.empty() ? "-" : fmt::format("{}", fmt::join(labels, ","));
}

std::string nodes_table(const std::vector<NodeInfo>& nodes) {
  std::vector<std::vector<std::string>> rows;
  for (const NodeInfo& node : nodes) {
    const uint64_t slab_bytes = node.join.slab_bytes;
    rows.push_back(
        {node.join.id.value, std::string(coordinator::to_string(node.state)), transports_of(node),
         format_size(node.free_slabs * slab_bytes),
         format_size(node.total_slabs * slab_bytes) +
             (node.lend_bytes ? " -> " + format_size(*node.lend_bytes) : ""),
         fmt::format("{:.1f}s", static_cast<double>(node.last_heartbeat_age.count()) / 1000.0),
         node.join.agent_url});
  }
  std::vector<std::string> head{"NODE",  "STATE",     "TRANSPORTS", "FREE",
                                "TOTAL", "HEARTBEAT", "AGENT"};
  const auto on_disk = [](const NodeInfo& node) { return node.join.spill; };
  if (std::ranges::any_of(nodes, on_disk)) {
    head.emplace_back("LENDS");
    for (size_t i = 0; i < nodes.size(); ++i)
      rows[i].emplace_back(on_disk(nodes[i]) ? "disk" : "memory");
  }
  const auto labeled = [](const NodeInfo& node) { return !node.join.labels.empty(); };
  if (std::ranges::any_of(nodes, labeled)) {
    head.emplace_back("LABELS");
    for (size_t i = 0; i < nodes.size(); ++i) rows[i].push_back(labels_of(nodes[i]));
  }
  return format_table(head, rows);
}

// Its borrower does not use it.
bool is_gone(const coordinator::Lease& lease) {
  return lease.lost || lease.stale;
}

std::string regions_table(const std::vector<RegionInfo>& regions) {
  std::vector<std::vector<std::string>> rows;
  for (const RegionInfo& region : regions) {
    const auto lost = std::ranges::count_if(region.leases, is_gone);
    rows.push_back(
        {region.id.value, region.name.empty() ? "-" : region.name, std::to_string(region.replicas),
         std::to_string(region.leases.size()), std::to_string(lost),
         format_size(region.leases.size() * region.slab_bytes),
         counter_of(region.counters, "farpage_resident_bytes", format_size),
         counter_of(region.counters, "farpage_remote_bytes", format_size),
         counter_of(region.counters, "farpage_faults_total{kind=\"remote\"}", std::to_string),
         counter_of(region.counters, "farpage_evictions_total{kind=\"written\"}", std::to_string)});
  }
  return format_table({"REGION", "NAME", "REPLICAS", "SLABS", "LOST", "MEMORY", "RESIDENT",
                       "REMOTE", "FAULTS", "WRITTEN"},
                      rows);
}

size_t degraded_slabs(const std::vector<RegionInfo>& regions) {
  std::set<std::pair<std::string, SlabIndex>> degraded;
  for (const RegionInfo& region : regions)
    for (const coordinator::Lease& lease : region.leases)
      if (is_gone(lease)) degraded.emplace(region.id.value, lease.slab);
  return degraded.size();
}

std::string totals(const std::vector<NodeInfo>& nodes, const std::vector<RegionInfo>& regions) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t free_on_disks = 0;
  uint64_t disks = 0;
  size_t alive = 0;
  for (const NodeInfo& node : nodes) {
    if (node.state != coordinator::NodeState::kAlive) continue;
    ++alive;
    (node.join.spill ? free_on_disks : free_bytes) += node.free_slabs * node.join.slab_bytes;
    (node.join.spill ? disks : total_bytes) += node.total_slabs * node.join.slab_bytes;
  }
  const auto degraded = degraded_slabs(regions);
  return fmt::format(
      "{} of {} nodes alive, {} of {} free{}, {} regions{}\n", alive, nodes.size(),
      format_size(free_bytes), format_size(total_bytes),
      disks > 0
          ? fmt::format(", {} of {} free on disks", format_size(free_on_disks), format_size(disks))
          : "",
      regions.size(), degraded > 0 ? fmt::format(", degraded slabs: {}", degraded) : "");
}

// In the earlier look; 0: it was not there.
uint64_t faults_before(const serve::PagerStatus& before, const serve::TargetStatus& target) {
  for (const serve::RunStatus& run : before.runs)
    for (const serve::TargetStatus& earlier : run.targets)
      if (earlier.pid == target.pid && earlier.faults <= target.faults) return earlier.faults;
  return 0;
}

}  // namespace

std::string pager_text(const serve::PagerStatus& before, const serve::PagerStatus& now,
                       Milliseconds between) {
  std::vector<std::vector<std::string>> rows;
  uint64_t taken = 0;
  size_t processes = 0;
  for (const serve::RunStatus& run : now.runs) {
    taken += run.local_bytes;
    processes += run.targets.size();
    for (const serve::TargetStatus& target : run.targets) {
      const uint64_t faults = target.faults - faults_before(before, target);
      rows.push_back({std::to_string(run.pid), format_size(run.local_bytes), target.program,
                      std::to_string(target.pid), format_size(target.limit_bytes),
                      format_size(target.resident_bytes), format_size(target.remote_bytes),
                      std::to_string(faults * 1000 / static_cast<uint64_t>(between.count())),
                      fmt::format("{:.1f}", target.fault_p99_us),
                      target.transports.empty() ? "-" : target.transports});
    }
  }
  return format_table({"RUN", "LOCAL", "PROGRAM", "PID", "LIMIT", "RESIDENT", "REMOTE", "FAULTS/S",
                       "P99 US", "TRANSPORTS"},
                      rows) +
         fmt::format("\nruns: {}, processes: {}, local memory: {} of {} free\n", now.runs.size(),
                     processes, format_size(now.local_bytes - std::min(taken, now.local_bytes)),
                     format_size(now.local_bytes));
}

std::string status_text(const std::vector<NodeInfo>& nodes,
                        const std::vector<RegionInfo>& regions) {
  return nodes_table(nodes) + "\n" + regions_table(regions) + "\n" + totals(nodes, regions);
}

}  // namespace farpage::cli
