#include "cli/node_settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/named_values.h"
#include "cli/spill.h"
#include "http/json_reader.h"
#include "pager/options.h"

namespace farpage::cli {

std::string node_directory() {
  if (::geteuid() == 0) return "/run/farpage";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return std::string(runtime) + "/farpage";
  return fmt::format("/tmp/farpage-{}", ::geteuid());
}

std::string default_shm_socket(const std::string& node_name) {
  return node_directory() + "/" + node_name + ".sock";
}

void add_options(Subcommand& subcommand, NodeSettings& settings) {
  subcommand
      .text("--coordinator", settings.coordinator,
            "URL of the coordinator; of several all, with commas between",
            Subcommand::Scope::kShared)
      .required()
      .text("--token-file", settings.token_file,
            "File with the bearer token, for the coordinator and for callers of the agent",
            Subcommand::Scope::kShared)
      .size("--lend", settings.lend_bytes, "Memory to lend; allocated at the start (default: 1G)")
      .text("--spill", settings.spill,
            "Lend a file in place of memory, FOLDER,size=20G: for what no memory has room; over "
            "tcp alone")
      .size("--slab", settings.slab_bytes, "Unit of lending, a power of two from 2M to 1G")
      .text("--name", settings.name,
            "Name of this node in the cluster (default: the host's name; further nodes of this "
            "host append -2, -3 and so on)")
      .text(
          "--state-dir", settings.state_directory,
          "Directory that survives a restart: NAME.id there tells this node from another one with "
          "its name, and from a copy of its disk")
      .texts("--label", settings.labels,
             "Where this node is, as zone=a; for regions that are spread by zone. Several times")
      .text("--listen-agent", settings.listen_agent, "Where the coordinator reaches this node")
      .text("--advertise", settings.advertise,
            "Name or address that others use for this host, when it listens on 0.0.0.0")
      .flag("--insecure", settings.insecure, "Listen beyond loopback without a token")
      .text("--transports", settings.transports, "What to offer: auto, or a list of verbs,shm,tcp")
      .text("--tcp-listen", settings.tcp_listen, "Where the TCP data server listens")
      .text("--shm-socket", settings.shm_socket,
            "Unix socket for borrowers on this host, in a directory of mode 0700 (default: "
            "/run/farpage/NAME.sock for root, else below $XDG_RUNTIME_DIR or /tmp)")
      .text("--device", settings.device, "RDMA device (default: the first with an active port)")
      .number("--device-port", settings.device_port, 0, 255, "Port of the device; 0: first active")
      .number("--gid-index", settings.gid_index, -1, 255, "GID; -1: RoCE v2, IPv4 first")
      .number("--mtu", settings.mtu_bytes, 0, 4096, "Upper limit of the path MTU; 0: the port's")
      .number("--max-rd-atomic", settings.max_rd_atomic, 0, 255,
              "READs in flight for one borrower; 0: the device's limit")
      .number("--max-connections", settings.max_connections, 1, 65536,
              "Connections of borrowers on each transport; further ones are refused")
      .flag("--hugepages", settings.hugepages, "Lend 2 MiB pages of the host's pool")
      .flag("--lazy", settings.lazy,
            "Allocate each page when it is first written, not all pages at the start; with "
            "--spill: do not write the file once")
      .number("--numa-node", settings.numa_node, -1, 1023, "NUMA node of the memory; -1: any")
      .duration("--heartbeat", settings.heartbeat_interval,
                "Interval of the heartbeats to the coordinator")
      .duration("--leave-timeout", settings.leave_timeout,
                "How long SIGTERM waits for borrowers to return their slabs")
      .duration("--session-grace", settings.session_grace,
                "How long a borrower that stopped answering keeps its slabs: its machine may be "
                "suspended or cut off")
      .text("--repair-rate", settings.repair_rate,
            "How fast this node copies images that lack replicas, when the coordinator asks it: "
            "auto (a quarter of the link), max, off, or a size a second")
      .choice("--output", settings.output, {"text", "json"},
              "Format of the line printed when joined", Subcommand::Scope::kShared);
}

Result<coordinator::Labels> parse_labels(const std::vector<std::string>& labels) {
  const auto parse = [](const std::string& key,
                        const std::string& value) -> std::optional<std::string> {
    if (!http::is_name(key) || !http::is_name(value)) return std::nullopt;
    return value;
  };
  FARPAGE_TRY(parsed, parse_named<std::string>("--label", labels,
                                               "is not KEY=VALUE, two names as in zone=a", parse));
  if (parsed.size() > coordinator::kMaxLabels)
    return fail(ErrorCode::kInvalid, fmt::format("--label: at most {}", coordinator::kMaxLabels));
  return parsed;
}

Result<rdma::TransportChoice> transports_of(const NodeSettings& settings) {
  FARPAGE_TRY(choice, rdma::parse_transports(settings.transports, "--transports"));
  if (settings.spill.empty()) return choice;
  const std::vector<rdma::TransportKind> tcp{rdma::TransportKind::kTcp};
  if (!choice.automatic && choice.kinds != tcp)
    return fail(ErrorCode::kInvalid,
                fmt::format("--transports: {}: a file (--spill) is lent over tcp alone: each READ "
                            "waits for the disk in this process, and over shm and verbs no "
                            "process is asked",
                            settings.transports));
  return rdma::TransportChoice{.automatic = false, .kinds = tcp};
}

namespace {

Status check_spill(const NodeSettings& settings) {
  if (settings.spill.empty()) return {};
  FARPAGE_TRY_VOID(parse_spill(settings.spill));
  if (settings.lend_bytes)
    return fail(ErrorCode::kInvalid,
                "--spill: a node lends memory (--lend) or a file, not both: start a second node, "
                "and give both one label, as --label host=a; with --spread-by host replicas are "
                "not both on this host");
  if (settings.hugepages || settings.numa_node >= 0)
    return fail(ErrorCode::kInvalid,
                "--spill: a file has no huge pages and no NUMA node: omit --hugepages and "
                "--numa-node");
  return {};
}

}  // namespace

Status check(const NodeSettings& settings) {
  FARPAGE_TRY_VOID(parse_labels(settings.labels));
  FARPAGE_TRY(agent, parse_host_port(settings.listen_agent, "--listen-agent"));
  FARPAGE_TRY(tcp, parse_host_port(settings.tcp_listen, "--tcp-listen"));
  FARPAGE_TRY_VOID(published_host(agent, settings.advertise, "--listen-agent"));
  FARPAGE_TRY_VOID(published_host(tcp, settings.advertise, "--tcp-listen"));
  FARPAGE_TRY_VOID(check_spill(settings));
  FARPAGE_TRY_VOID(transports_of(settings));
  if (const auto rate = pager::parse_repair_rate(settings.repair_rate); !rate)
    return tl::unexpected(rate.error());
  if (!settings.name.empty() && !http::is_name(settings.name))
    return fail(ErrorCode::kInvalid,
                fmt::format("--name: '{}' is not a name: 1 to {} letters, digits, dots, _ and -",
                            settings.name, http::kMaxNameBytes));
  if (settings.heartbeat_interval < Milliseconds(10))
    return fail(ErrorCode::kInvalid, "--heartbeat: at least 10 ms");
  if (settings.coordinator.empty())
    return fail(ErrorCode::kInvalid, "--coordinator: the URL of the coordinator is needed");
  if (!is_loopback(agent) && settings.token_file.empty() && !settings.insecure)
    return fail(ErrorCode::kInvalid,
                fmt::format("--listen-agent {} can be reached by others, who could take any slab: "
                            "add --token-file, or --insecure on a network that you trust",
                            settings.listen_agent));
  return {};
}

}  // namespace farpage::cli
