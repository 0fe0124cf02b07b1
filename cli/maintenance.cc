// farpage drain, cordon, uncordon, lend: take a memory node out of service and put it back, and
// change how much it lends.
#include <fmt/format.h>

#include <thread>

#include "base/size.h"
#include "cli/patient_asker.h"
#include "cli/secrets.h"
#include "cli/subcommand.h"
#include "coordinator/client.h"
#include "coordinator/operator_client.h"

namespace farpage::cli {
namespace {

struct MaintenanceSettings {
  std::string node;
  std::string coordinator = "http://127.0.0.1:7070";
  std::string token_file;
  std::string size;  // of lend
  Milliseconds timeout = std::chrono::minutes(10);
};

Result<std::unique_ptr<coordinator::Client>> client_of(const MaintenanceSettings& settings) {
  FARPAGE_TRY(token, read_token(settings.token_file));
  return coordinator::Client::create({settings.coordinator, token});
}

// Until the node lends nothing, and is removed. Says on stderr how it goes on.
Status remove_when_empty(coordinator::Client& client, const NodeId& id, PatientAsker& asker) {
  constexpr Milliseconds kLook{200};
  std::optional<uint32_t> said;
  while (true) {
    const auto found = asker([&] { return client.node(id); });
    if (!found && found.error().code == ErrorCode::kNotFound && said == 0U) return {};
    if (!found && found.error().code == ErrorCode::kNotFound)
      return fail(ErrorCode::kConflict,
                  fmt::format("the coordinator does not know {} any more: it has left, or the "
                              "coordinator has lost its state; what it still lent is not known",
                              id.value));
    FARPAGE_TRY(node, found);
    if (!coordinator::is_leaving(node.state))
      return fail(ErrorCode::kConflict,
                  fmt::format("{} does not drain any more: it was opened again, or the coordinator "
                              "has lost its state; see farpage status",
                              id.value));
    const uint32_t lent = node.total_slabs - node.free_slabs;
    if (said != lent)
      fmt::print(stderr, "{}: {} slabs to move ({})\n", id.value, lent,
                 format_size(lent * node.join.slab_bytes));
    said = lent;
    // A node that is lost does not confirm that it has taken slabs back.
    if (lent == 0 || node.state == coordinator::NodeState::kLost) {
      Status removed = asker([&] { return client.remove_node(id, false); });
      if (!removed && removed.error().code == ErrorCode::kNotFound) return {};
      if (removed || removed.error().code != ErrorCode::kConflict) return removed;
    }
    if (asker.is_over())
      return fail(ErrorCode::kTimedOut,
                  fmt::format("{} still lends {} slabs: it goes on draining (is there room "
                              "elsewhere? see farpage status); farpage uncordon ends that",
                              id.value, lent));
    std::this_thread::sleep_for(kLook);
  }
}

Result<int> drain(const MaintenanceSettings& settings) {
  FARPAGE_TRY(client, client_of(settings));
  const NodeId id{settings.node};
  PatientAsker asker(SteadyClock::read() + settings.timeout);
  FARPAGE_TRY_VOID(asker([&] { return client->drain_node(id); }));
  FARPAGE_TRY_VOID(remove_when_empty(*client, id, asker));
  fmt::print("{} is empty and has left the cluster\n", id.value);
  return kExitOk;
}

Result<int> cordon(const MaintenanceSettings& settings) {
  FARPAGE_TRY(client, client_of(settings));
  FARPAGE_TRY_VOID(client->cordon_node(NodeId{settings.node}));
  fmt::print("{} gets no new slabs to lend; those it lends stay\n", settings.node);
  return kExitOk;
}

Result<int> uncordon(const MaintenanceSettings& settings) {
  FARPAGE_TRY(client, client_of(settings));
  FARPAGE_TRY_VOID(client->uncordon_node(NodeId{settings.node}));
  fmt::print("{} lends again\n", settings.node);
  return kExitOk;
}

// Until the node lends as much, or has given it up. Says on stderr how it goes on.
Status await_lent(coordinator::Client& client, const NodeId& id, PatientAsker& asker) {
  constexpr Milliseconds kLook{200};
  std::optional<uint32_t> said;
  while (true) {
    FARPAGE_TRY(node, asker([&] { return client.node(id); }));
    if (!node.lend_refused.empty())
      return fail(ErrorCode::kExhausted,
                  fmt::format("{} lends {} and no more: {}", id.value,
                              format_size(node.join.capacity_bytes), node.lend_refused));
    if (!node.lend_bytes) return {};
    if (said != node.total_slabs)
      fmt::print(stderr, "{}: lends {}, on its way to {}\n", id.value,
                 format_size(node.join.capacity_bytes), format_size(*node.lend_bytes));
    said = node.total_slabs;
    if (asker.is_over())
      return fail(ErrorCode::kTimedOut,
                  fmt::format("{} lends {}, and goes on towards {} (is there room elsewhere? see "
                              "farpage status); farpage lend with another size ends that",
                              id.value, format_size(node.join.capacity_bytes),
                              format_size(*node.lend_bytes)));
    std::this_thread::sleep_for(kLook);
  }
}

Result<int> lend(const MaintenanceSettings& settings) {
  const auto bytes = parse_size(settings.size);
  if (!bytes) return fail_with("SIZE", bytes.error());
  FARPAGE_TRY(client, client_of(settings));
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(operate, coordinator::OperatorClient::create({settings.coordinator, token}));
  const NodeId id{settings.node};
  PatientAsker asker(SteadyClock::read() + settings.timeout);
  FARPAGE_TRY(asked, asker([&] { return operate->lend(id, {*bytes}); }));
  FARPAGE_TRY_VOID(await_lent(*client, id, asker));
  FARPAGE_TRY(node, asker([&] { return client->node(id); }));
  const uint64_t wanted = *bytes / node.join.slab_bytes * node.join.slab_bytes;
  if (node.join.capacity_bytes != wanted)
    return fail(ErrorCode::kConflict,
                fmt::format("{} lends {}: it has started again, or was told to lend something else",
                            id.value, format_size(node.join.capacity_bytes)));
  fmt::print("{} lends {}\n", id.value, format_size(node.join.capacity_bytes));
  return kExitOk;
}

Subcommand subcommand_of(CLI::App& root, MaintenanceSettings& settings, const std::string& name,
                         const std::string& summary, const std::vector<std::string>& examples) {
  Subcommand subcommand(root, name, summary, examples);
  subcommand.positional("NODE", settings.node, "Name of the memory node")
      .text("--coordinator", settings.coordinator,
            "URL of the coordinator; of several all, with commas between",
            Subcommand::Scope::kShared)
      .text("--token-file", settings.token_file, "File with the bearer token",
            Subcommand::Scope::kShared);
  return subcommand;
}

}  // namespace

void add_maintenance(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<MaintenanceSettings>();
  subcommand_of(
      root, *settings, "drain", "Move all slabs of a memory node elsewhere, and remove it",
      {"farpage drain node-3 --coordinator http://10.0.0.1:7070",
       "Programs go on meanwhile. Nothing new is placed on the node, its slabs are copied to "
       "other nodes, and when it lends nothing it leaves the cluster and its process ends."})
      .duration("--timeout", settings->timeout, "How long to wait until it is empty")
      .on_run(invocation, [settings] { return drain(*settings); });
  subcommand_of(root, *settings, "lend", "Change how much a running memory node lends",
                {"farpage lend node-3 32G --coordinator http://10.0.0.1:7070",
                 "More: the node makes the memory now. Less: free memory goes at once; programs "
                 "move what else has to go to other nodes, and go on meanwhile.",
                 "A restart of the node ends it: then it lends what its --lend says."})
      .positional("SIZE", settings->size, "What it is to lend, in whole slabs: 32G")
      .duration("--timeout", settings->timeout, "How long to wait until it lends so much")
      .on_run(invocation, [settings] { return lend(*settings); });
  subcommand_of(root, *settings, "cordon", "Place nothing new on a memory node",
                {"farpage cordon node-3", "What it lends stays there. A restart does not end it."})
      .on_run(invocation, [settings] { return cordon(*settings); });
  subcommand_of(root, *settings, "uncordon", "Lend from a memory node again",
                {"farpage uncordon node-3", "Ends a cordon, and a drain that is under way."})
      .on_run(invocation, [settings] { return uncordon(*settings); });
}

}  // namespace farpage::cli
