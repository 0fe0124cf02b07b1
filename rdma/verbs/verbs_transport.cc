#include "rdma/verbs/verbs_transport.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "rdma/verbs/choices.h"
#include "rdma/verbs/port_facts.h"
#include "rdma/verbs/queue_pair.h"
#include "rdma/verbs/verbs_channel.h"

namespace farpage::rdma::verbs {
namespace {

// A node's probes (verbs_memory_host.h) are WRITEs of no bytes: the queue pair must admit WRITEs.
// Nothing else can be written, as no memory of this side is registered for remote access.
constexpr unsigned kRemoteAccess = IBV_ACCESS_REMOTE_WRITE;

Status check_options(const ChannelOptions& options) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  if (options.buffer.empty() || reinterpret_cast<uintptr_t>(options.buffer.data()) % page != 0) {
    return fail(ErrorCode::kInvalid, "buffer must be page-aligned and not empty");
  }
  if (options.operations_in_flight == 0) {
    return fail(ErrorCode::kInvalid, "operations_in_flight must be 1 or more");
  }
  return {};
}

// The requested number, limited by the room in the device and the completion queue.
uint32_t operations_in_flight(const PortFacts& port, const ChannelOptions& options,
                              uint32_t cq_depth) {
  uint32_t count =
      std::min(options.operations_in_flight, std::min(port.max_work_requests, port.max_cq_entries));
  if (cq_depth != 0) count = std::min(count, cq_depth);
  return count;
}

}  // namespace

Result<std::shared_ptr<const Device>> VerbsTransport::device_named(const std::string& name) {
  const MutexLock lock(mutex_);
  if (const auto found = devices_.find(name); found != devices_.end()) return found->second.device;
  FARPAGE_TRY(device, Device::open(library_, name));
  FARPAGE_TRY(events, AsyncEvents::start(device, {}));
  devices_.emplace(name, OpenDevice{device, std::move(events)});
  return device;
}

Result<std::unique_ptr<Channel>> VerbsTransport::connect(const TransportAddress& address,
                                                         const ChannelOptions& options,
                                                         const QueuePairExchange& exchange) {
  if (address.kind != TransportKind::kVerbs) {
    return fail(ErrorCode::kUnsupported, "the address is not one of verbs");
  }
  if (!exchange) {
    return fail(ErrorCode::kInvalid, "the verbs transport needs a queue pair exchange");
  }
  FARPAGE_TRY_VOID(check_options(options));
  const RetryPolicy retry{options_.timeout_exponent, options_.retry_count};
  FARPAGE_TRY_VOID(check_retry_policy(retry));
  FARPAGE_TRY(local, choose_local_side(survey_devices(*library_, options_.device),
                                       {options_.device, options_.device_port, options_.gid_index,
                                        options_.mtu_bytes, options_.max_rd_atomic}));
  FARPAGE_TRY(device, device_named(local.port.device));
  FARPAGE_TRY(domain, ProtectionDomain::create(device));
  FARPAGE_TRY(buffer, Registration::create(domain, options.buffer, IBV_ACCESS_LOCAL_WRITE));
  const uint32_t in_flight = operations_in_flight(local.port, options, options_.cq_depth);
  FARPAGE_TRY(completions, CompletionQueue::create(
                               device, options_.cq_depth == 0 ? in_flight : options_.cq_depth));
  FARPAGE_TRY(unconnected,
              UnconnectedQueuePair::create(domain, completions, local, in_flight, kRemoteAccess));
  QueuePairEndpoint ours = unconnected.endpoint();
  ours.session = options.session;
  FARPAGE_TRY(peer, exchange(ours));
  FARPAGE_TRY(queue_pair, std::move(unconnected).connect(peer, retry));

  const ChannelLimits limits = {.operations_in_flight = in_flight,
                                .reads_in_flight = std::min(queue_pair.read_depth(), in_flight),
                                .operation_bytes = local.port.max_message_bytes};
  log::info(
      "verbs: connected device={} port={} gid_index={} mtu={} read_depth={} qpn={} peer_qpn={}",
      local.port.device, local.port.port, local.gid.index, queue_pair.mtu_bytes(),
      queue_pair.read_depth(), queue_pair.number(), peer.qpn);
  return std::make_unique<VerbsChannel>(std::move(device), std::move(buffer),
                                        std::move(completions), std::move(queue_pair), limits,
                                        options);
}

}  // namespace farpage::rdma::verbs
