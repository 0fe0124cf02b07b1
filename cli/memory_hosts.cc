#include "cli/memory_hosts.h"

#include <fmt/format.h>

#include "base/log.h"
#include "rdma/shm/shm.h"
#include "rdma/tcp/tcp.h"
#include "rdma/verbs/verbs.h"

namespace farpage::cli {
namespace {

using MadeHost = Result<std::unique_ptr<rdma::MemoryHost>>;

// Each waits for the disk, and its connections with it.
constexpr unsigned kDiskThreads = 4;

using Fences = std::shared_ptr<rdma::SessionFences>;

MadeHost make_tcp(const NodeSettings& settings, const Fences& fences) {
  FARPAGE_TRY(listen, parse_host_port(settings.tcp_listen, "--tcp-listen"));
  FARPAGE_TRY(published, published_host(listen, settings.advertise, "--tcp-listen"));
  rdma::TcpHostOptions options;
  options.listen_host = listen.host;
  options.port = listen.port;
  options.advertise_host = published;
  options.max_connections = static_cast<uint32_t>(settings.max_connections);
  options.fences = fences;
  if (!settings.spill.empty()) {
    options.server_threads = kDiskThreads;
    options.spin_time = Nanoseconds(0);
  }
  return rdma::make_tcp_memory_host(std::move(options));
}

MadeHost make_shm(const NodeSettings& settings, const Fences& fences) {
  rdma::ShmHostOptions options;
  options.socket_path =
      settings.shm_socket.empty() ? default_shm_socket(settings.name) : settings.shm_socket;
  options.max_peers = static_cast<uint32_t>(settings.max_connections);
  options.fences = fences;
  return rdma::make_shm_memory_host(std::move(options));
}

MadeHost make_verbs(const NodeSettings& settings, const Fences& fences) {
  rdma::VerbsHostOptions options;
  options.device = settings.device;
  options.device_port = static_cast<uint8_t>(settings.device_port);
  options.gid_index = static_cast<int>(settings.gid_index);
  options.mtu_bytes = static_cast<uint32_t>(settings.mtu_bytes);
  options.max_rd_atomic = static_cast<uint32_t>(settings.max_rd_atomic);
  options.max_peers = static_cast<uint32_t>(settings.max_connections);
  options.fences = fences;
  return rdma::make_verbs_memory_host(options);
}

MadeHost make_one(const NodeSettings& settings, rdma::TransportKind kind, const Fences& fences) {
  switch (kind) {
    case rdma::TransportKind::kTcp:
      return make_tcp(settings, fences);
    case rdma::TransportKind::kShm:
      return make_shm(settings, fences);
    case rdma::TransportKind::kVerbs:
      return make_verbs(settings, fences);
    case rdma::TransportKind::kLoop:
    case rdma::TransportKind::kFile:
      break;
  }
  return fail(ErrorCode::kUnsupported, "no transport of a node");
}

// The option that asks for this transport; "": none, it is only tried.
std::string_view asked_by(const NodeSettings& settings, const rdma::TransportChoice& choice,
                          rdma::TransportKind kind) {
  if (!choice.automatic) return "--transports";
  if (kind == rdma::TransportKind::kTcp && settings.tcp_listen != NodeSettings{}.tcp_listen)
    return "--tcp-listen";
  if (kind == rdma::TransportKind::kShm && !settings.shm_socket.empty()) return "--shm-socket";
  if (kind == rdma::TransportKind::kVerbs && !settings.device.empty()) return "--device";
  return "";
}

}  // namespace

Result<std::vector<std::unique_ptr<rdma::MemoryHost>>> make_memory_hosts(
    const NodeSettings& settings, const rdma::TransportChoice& choice, const Fences& fences) {
  std::vector<std::unique_ptr<rdma::MemoryHost>> hosts;
  for (const rdma::TransportKind kind : choice.kinds) {
    MadeHost host = make_one(settings, kind, fences);
    if (host) {
      hosts.push_back(std::move(*host));
      continue;
    }
    if (const std::string_view option = asked_by(settings, choice, kind); !option.empty())
      return fail_with(fmt::format("{}: {} does not work here", option, rdma::to_string(kind)),
                       std::move(host).error());
    log::info("node transport_left_out transport={} reason=\"{}\"", rdma::to_string(kind),
              host.error().message());
  }
  if (hosts.empty())
    return fail(ErrorCode::kUnsupported,
                "no transport works on this host; farpage doctor says why");
  return hosts;
}

}  // namespace farpage::cli
