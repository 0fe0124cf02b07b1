// farpage node: lends this host's memory, or room of its disk. Constructs and connects the parts of
// a memory node.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/host.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/size.h"
#include "cli/image_repairs.h"
#include "cli/memory_hosts.h"
#include "cli/node_identity.h"
#include "cli/node_name.h"
#include "cli/node_settings.h"
#include "cli/secrets.h"
#include "cli/signals.h"
#include "cli/spill.h"
#include "cli/subcommand.h"
#include "coordinator/client.h"
#include "node/node.h"
#include "node/slab_pool.h"

namespace farpage::cli {
namespace {

// Prints the ready line, for which scripts wait.
void print_ready(const NodeSettings& settings, const coordinator::NodeInfo& node) {
  const coordinator::NodeJoin& join = node.join;
  std::vector<std::string> transports;
  for (const rdma::TransportAddress& address : join.transports)
    transports.emplace_back(rdma::to_string(address.kind));
  if (settings.output == "json") {
    const nlohmann::json ready = {{"event", "ready"},
                                  {"node", join.id.value},
                                  {"agent", join.agent_url},
                                  {"capacity_bytes", join.capacity_bytes},
                                  {"slab_bytes", join.slab_bytes},
                                  {"transports", transports}};
    fmt::print("{}\n", ready.dump());
  } else {
    fmt::print("node {} ready: lends {}{} in slabs of {} over {}, agent {}\n", join.id.value,
               format_size(join.capacity_bytes), join.spill ? " of a disk" : "",
               format_size(join.slab_bytes), fmt::join(transports, ","), join.agent_url);
  }
  std::fflush(stdout);
}

Result<std::unique_ptr<node::SlabPool>> make_pool(const NodeSettings& settings, bool pinned,
                                                  const ShutdownSignals& signals) {
  node::SlabPoolOptions options;
  options.lend_bytes = settings.lend_bytes.value_or(kDefaultLendBytes);
  options.slab_bytes = settings.slab_bytes;
  options.hugepages = settings.hugepages;
  options.lazy = settings.lazy;
  options.numa_node = static_cast<int>(settings.numa_node);
  options.pinned = pinned;
  if (!settings.spill.empty()) {
    FARPAGE_TRY(spill, parse_spill(settings.spill));
    options.lend_bytes = spill.bytes;
    options.folder = spill.folder;
  }
  uint64_t tenths_told = 0;
  options.progress = [&signals, tenths_told](uint64_t ready, uint64_t total) mutable {
    const uint64_t tenths = ready * 10 / total;
    if (tenths > tenths_told)
      log::info("node memory_ready bytes={} of={}", format_size(ready), format_size(total));
    tenths_told = tenths;
    return !signals.is_pending();
  };
  auto pool = node::SlabPool::create(options);
  if (pool || options.folder.empty()) return pool;
  return fail_with("--spill", std::move(pool).error());
}

node::NodeOptions node_options(const NodeSettings& settings, const HostPort& listen,
                               const std::string& token, coordinator::Labels labels,
                               const std::string& identity) {
  node::NodeOptions options;
  options.labels = std::move(labels);
  options.identity = identity;
  options.id = NodeId{settings.name};
  options.agent = {listen.host, listen.port, token};
  options.advertise_host = settings.advertise;
  options.heartbeat_interval = settings.heartbeat_interval;
  return options;
}

// Null: it copies none.
std::unique_ptr<ImageRepairs> make_repairs(const NodeSettings& settings) {
  const auto rate = pager::parse_repair_rate(settings.repair_rate);
  if (!rate->enabled()) return nullptr;
  ClusterSettings cluster;
  cluster.coordinator = settings.coordinator;
  cluster.token_file = settings.token_file;
  cluster.link.device = settings.device;
  cluster.link.gid_index = settings.gid_index;
  return std::make_unique<ImageRepairs>(std::move(cluster), *rate);
}

bool offers_verbs(const std::vector<std::unique_ptr<rdma::MemoryHost>>& hosts) {
  for (const auto& host : hosts)
    if (host->address().kind == rdma::TransportKind::kVerbs) return true;
  return false;
}

Result<int> serve(NodeSettings settings) {
  FARPAGE_TRY_VOID(check(settings));
  raise_descriptor_limit();
  FARPAGE_TRY(claimed, claim_node_name(settings.name, node_directory()));
  settings.name = claimed.name;
  FARPAGE_TRY(identity, load_identity(settings.state_directory, settings.name));
  FARPAGE_TRY(listen, parse_host_port(settings.listen_agent, "--listen-agent"));
  FARPAGE_TRY(choice, transports_of(settings));
  FARPAGE_TRY(labels, parse_labels(settings.labels));
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(client, coordinator::Client::create({settings.coordinator, token}));
  FARPAGE_TRY(signals, ShutdownSignals::create());
  const auto fences = std::make_shared<rdma::SessionFences>(settings.session_grace);
  FARPAGE_TRY(hosts, make_memory_hosts(settings, choice, fences));
  Result<std::unique_ptr<node::SlabPool>> pool = make_pool(settings, offers_verbs(hosts), signals);
  if (!pool && signals.is_pending()) return kExitOk;
  if (!pool) return tl::unexpected(std::move(pool).error());

  Mutex mutex;
  std::optional<Error> refusal;  // guarded by mutex
  std::once_flag ready;
  node::NodeOptions options =
      node_options(settings, listen, token, std::move(labels), identity.text);
  options.session_groups = [fences] { return fences->groups(); };
  const std::unique_ptr<ImageRepairs> repairs = make_repairs(settings);
  if (repairs)
    options.agent.repair_image = [&repairs](const ImageId& image) { repairs->want(image); };
  options.on_joined = [&](const coordinator::NodeInfo& node) {
    std::call_once(ready, [&] { print_ready(settings, node); });
  };
  options.on_refused = [&](const Error& error) {
    {
      const MutexLock lock(mutex);
      refusal = error;
    }
    signals.interrupt();
  };
  options.on_removed = [&](const Error&) { signals.interrupt(); };
  FARPAGE_TRY(node, node::Node::create(std::move(options), std::move(*pool), std::move(hosts),
                                       std::move(client)));
  const int signal_number = signals.wait();
  if (signal_number == 0) {
    const MutexLock lock(mutex);
    if (!refusal) return kExitOk;  // removed
    Error error = *refusal;
    // The name is an option: the user must choose another.
    if (error.code == ErrorCode::kConflict) error.code = ErrorCode::kInvalid;
    return fail_with("the coordinator refuses this node", std::move(error));
  }
  log::info("node stopping signal={}", signal_number);
  if (repairs) repairs->stop();  // what it has begun is another node's
  if (node->leave(settings.leave_timeout)) return kExitOk;
  return fail(ErrorCode::kTimedOut,
              "left while slabs were still lent: their borrowers lost them; wait longer with "
              "--leave-timeout");
}

}  // namespace

void add_node(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<NodeSettings>();
  Subcommand subcommand(
      root, "node", "Lend this host's memory",
      {"farpage node --coordinator http://10.0.0.1:7070 --lend 16G --token-file token \\",
       "    --listen-agent 0.0.0.0:7071 --tcp-listen 0.0.0.0:7072 --advertise 10.0.0.2",
       "farpage node --coordinator http://127.0.0.1:7070 --lend 1G --transports shm,tcp",
       "farpage node --coordinator http://10.0.0.1:7070 --lend 64G --hugepages --numa-node 1",
       "farpage node --coordinator http://127.0.0.1:7070 --spill /var/tmp,size=100G"});
  add_options(subcommand, *settings);
  subcommand.on_run(invocation, [settings] { return serve(*settings); });
}

}  // namespace farpage::cli
