#include "rdma/verbs/verbs_memory_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/log.h"

namespace farpage::rdma::verbs {
namespace {

// The least rights for READ and WRITE; the specification requires LOCAL_WRITE with REMOTE_WRITE.
constexpr int kSlabAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr unsigned kPeerAccess = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr uint32_t kMaxPeersLimit = 65536;

// A repeated queue pair number or session means that the peer has reconnected.
bool replaces(const QueuePairEndpoint& newer, const QueuePairEndpoint& former) {
  const bool same_number =
      newer.qpn == former.qpn && newer.lid == former.lid && newer.gid == former.gid;
  return same_number || (newer.session != 0 && newer.session == former.session);
}

}  // namespace

Result<std::unique_ptr<MemoryHost>> VerbsMemoryHost::create(
    const std::shared_ptr<const VerbsLibrary>& library, const VerbsHostOptions& options) {
  if (options.max_peers == 0 || options.max_peers > kMaxPeersLimit) {
    return fail(ErrorCode::kInvalid, "max_peers must be in 1.." + std::to_string(kMaxPeersLimit));
  }
  FARPAGE_TRY(local, choose_local_side(survey_devices(*library, options.device),
                                       {options.device, options.device_port, options.gid_index,
                                        options.mtu_bytes, options.max_rd_atomic}));
  VerbsHostOptions effective = options;
  effective.max_peers = std::min(options.max_peers, local.port.max_cq_entries);
  FARPAGE_TRY(device, Device::open(library, local.port.device));
  FARPAGE_TRY(completions, CompletionQueue::create(device, effective.max_peers));
  std::unique_ptr<VerbsMemoryHost> host(
      new VerbsMemoryHost(device, std::move(completions), std::move(local), effective));
  AsyncEventHandlers handlers;
  handlers.on_queue_pair_error = [&self = *host](uint32_t qpn, ibv_event_type type) {
    self.on_queue_pair_error(qpn, type);
  };
  handlers.on_interval = [&self = *host] { self.check_peers(); };
  handlers.interval = options.peer_check_interval;
  FARPAGE_TRY(events, AsyncEvents::start(device, std::move(handlers)));
  host->events_ = std::move(events);
  return host;
}

TransportAddress VerbsMemoryHost::address() const {
  // For people: connect() needs nothing of it, since each queue pair exchanges its own endpoint.
  return {
      TransportKind::kVerbs,
      fmt::format("{}/{} lid={} gid={} gid_index={} mtu={}", local_.port.device, local_.port.port,
                  local_.port.lid, gid_text(local_.gid.gid), local_.gid.index, local_.mtu_bytes)};
}

Result<std::shared_ptr<const ProtectionDomain>> VerbsMemoryHost::domain_of(SessionGroup borrower) {
  std::erase_if(domains_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const ProtectionDomain>& known = domains_[borrower];
  if (auto domain = known.lock()) return domain;
  FARPAGE_TRY(domain, ProtectionDomain::create(device_));
  known = domain;
  return domain;
}

Result<RemoteKey> VerbsMemoryHost::expose(const SlabMemory& slab, Generation /*generation*/,
                                          SessionGroup borrower) {
  std::shared_ptr<const ProtectionDomain> domain;
  {
    const MutexLock lock(mutex_);
    FARPAGE_TRY(found, domain_of(borrower));
    domain = std::move(found);
  }
  // Without the lock: the device pins the whole slab.
  FARPAGE_TRY(registration, Registration::create(std::move(domain), slab.bytes, kSlabAccess));
  const RemoteKey key{registration.remote_key()};
  const MutexLock lock(mutex_);
  registrations_.emplace(key.value, std::move(registration));
  return key;
}

void VerbsMemoryHost::withdraw(RemoteKey key) {
  const MutexLock lock(mutex_);
  registrations_.erase(key.value);
}

Result<QueuePairEndpoint> VerbsMemoryHost::accept(const QueuePairEndpoint& peer) {
  const MutexLock lock(mutex_);
  const auto replaced = [&](const auto& entry) { return replaces(peer, entry.second.endpoint); };
  const auto former = static_cast<size_t>(std::ranges::count_if(peers_, replaced));
  if (peers_.size() - former >= options_.max_peers) {
    return fail(ErrorCode::kExhausted, std::to_string(peers_.size()) +
                                           " peers have queue pairs here, the most allowed "
                                           "(max_peers)");
  }
  // Made while the previous one exists, so its number differs: packets in flight to the previous
  // one find nothing. Made ready only after the previous one is destroyed.
  FARPAGE_TRY(domain, domain_of(session_group_of(peer.session)));
  FARPAGE_TRY(unconnected, UnconnectedQueuePair::create(std::move(domain), completions_, local_,
                                                        /*work_requests=*/1, kPeerAccess));
  for (auto entry = peers_.begin(); entry != peers_.end();)
    entry = replaced(*entry) ? drop(entry, "the peer reconnects", SessionEnd::kClosed)
                             : std::next(entry);
  QueuePairEndpoint ours = unconnected.endpoint();
  FARPAGE_TRY(queue_pair, std::move(unconnected).connect(peer, RetryPolicy{}));
  ours.mtu_bytes = queue_pair.mtu_bytes();
  ours.max_rd_atomic = queue_pair.read_depth();
  ours.max_dest_rd_atomic = queue_pair.answer_depth();
  log::info("verbs: peer accepted device={} qpn={} peer_qpn={} peer_gid={} mtu={} read_depth={}",
            device_->name(), ours.qpn, peer.qpn, peer.gid, ours.mtu_bytes, ours.max_dest_rd_atomic);
  Peer& accepted =
      peers_.emplace(ours.qpn, Peer{std::move(queue_pair), peer, false, {}}).first->second;
  accepted.pass = fences_->enter(peer.session, 0, [&fenced = accepted.queue_pair] {
    if (const Status done = fenced.reset(); !done)
      log::error("verbs: peer_not_fenced {}", done.error().message());
  });
  return ours;
}

HostCounters VerbsMemoryHost::counters() const {
  const MutexLock lock(mutex_);
  HostCounters counters;
  counters.peers = peers_.size();
  counters.refused = refused_;
  return counters;
}

VerbsMemoryHost::Peers::iterator VerbsMemoryHost::drop(Peers::iterator peer, std::string_view why,
                                                       SessionEnd end) {
  log::info("verbs: peer dropped device={} qpn={} peer_qpn={} peer_gid={} reason=\"{}\"",
            device_->name(), peer->first, peer->second.endpoint.qpn, peer->second.endpoint.gid,
            why);
  peer->second.pass.leave(end);
  return peers_.erase(peer);
}

void VerbsMemoryHost::on_queue_pair_error(uint32_t qpn, ibv_event_type type) {
  const MutexLock lock(mutex_);
  if (type == IBV_EVENT_QP_ACCESS_ERR) ++refused_;
  const auto peer = peers_.find(qpn);
  if (peer != peers_.end()) drop(peer, "its queue pair reported an error", SessionEnd::kUncertain);
}

void VerbsMemoryHost::check_peers() {
  const MutexLock lock(mutex_);
  take_answers();
  probe_all();
}

void VerbsMemoryHost::take_answers() {
  std::array<ibv_wc, 16> answers;
  int count = 0;
  while ((count = completions_.poll(answers)) > 0) {
    for (int i = 0; i < count; ++i) {
      const ibv_wc& answer = answers[static_cast<size_t>(i)];
      const auto peer = peers_.find(static_cast<uint32_t>(answer.wr_id));
      if (peer == peers_.end()) continue;
      peer->second.probed = false;
      if (answer.status != IBV_WC_SUCCESS) {
        // From here an exited process and a suspended machine look alike.
        drop(peer, device_->library().wc_status_str(answer.status), SessionEnd::kUncertain);
      }
    }
  }
}

void VerbsMemoryHost::probe_all() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (!peer->second.pass.is_open()) {
      peer = drop(peer, "the peer reconnects over another transport", SessionEnd::kClosed);
      continue;
    }
    if (peer->second.probed) {
      ++peer;
      continue;
    }
    ibv_send_wr probe{};
    probe.wr_id = peer->first;
    probe.opcode = IBV_WR_RDMA_WRITE;
    probe.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* not_taken = nullptr;
    if (peer->second.queue_pair.post(&probe, &not_taken) != 0) {
      peer = drop(peer, "its queue pair takes no requests", SessionEnd::kUncertain);
      continue;
    }
    peer->second.probed = true;
    ++peer;
  }
}

}  // namespace farpage::rdma::verbs
