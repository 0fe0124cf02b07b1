#include "node/lender.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace farpage::node {
namespace {

bool same_borrower(const coordinator::SlabLeaseRequest& a, const coordinator::SlabLeaseRequest& b) {
  return a.region == b.region && a.slab == b.slab && a.replica == b.replica;
}

}  // namespace

Lender::Lender(SlabPool& pool, std::span<const std::unique_ptr<rdma::MemoryHost>> hosts,
               Options options)
    : pool_(pool), hosts_(hosts), options_(std::move(options)) {}

Lender::~Lender() {
  const MutexLock lock(mutex_);
  for (const auto& [node_slab, lease] : leases_) withdraw_all(lease.registrations);
}

Result<std::vector<Lender::Registration>> Lender::expose_everywhere(const SlabPool::Lent& lent,
                                                                    rdma::SessionGroup borrower) {
  std::vector<Registration> registrations;
  for (const auto& host : hosts_) {
    const rdma::TransportKind kind = host->address().kind;
    Result<RemoteKey> key = host->expose(lent.memory, lent.generation, borrower);
    if (!key) {
      withdraw_all(registrations);
      return fail_with(fmt::format("registering a slab with {}", rdma::to_string(kind)),
                       std::move(key).error());
    }
    registrations.push_back({host.get(), kind, *key});
  }
  return registrations;
}

void Lender::withdraw_all(const std::vector<Registration>& registrations) {
  for (const Registration& registration : registrations)
    registration.host->withdraw(registration.key);
}

Result<coordinator::SlabLeaseReply> Lender::lease(uint32_t node_slab,
                                                  const coordinator::SlabLeaseRequest& borrower) {
  const MutexLock lock(mutex_);
  const auto held = leases_.find(node_slab);
  if (held != leases_.end() && same_borrower(held->second.borrower, borrower))
    return held->second.reply;
  if (refusing_)
    return fail(ErrorCode::kUnavailable, "this node is leaving and gives no new leases");
  if (held != leases_.end() && !is_in_use(held->second)) {
    log::warn(
        "node slab_abandoned slab={} generation={} region={} note=\"the coordinator does not "
        "know this lease, and its borrower has no session here\"",
        node_slab, held->second.reply.generation.value, held->second.borrower.region.value);
    FARPAGE_TRY_VOID(end(held));
  }
  FARPAGE_TRY(lent, pool_.lend(node_slab, kScrubWait));
  Result<std::vector<Registration>> registrations = expose_everywhere(lent, borrower.session_group);
  if (!registrations) {
    const Status back = pool_.take_back(node_slab, lent.generation);
    FARPAGE_CHECK(back.has_value(), "slab %u was lent a moment ago", node_slab);
    return tl::unexpected(std::move(registrations).error());
  }
  Lease lease;
  lease.borrower = borrower;
  lease.reply.address = RemoteAddress{reinterpret_cast<uint64_t>(lent.memory.bytes.data())};
  lease.reply.bytes = lent.memory.bytes.size();
  lease.reply.generation = lent.generation;
  for (const Registration& registration : *registrations)
    lease.reply.rkeys[registration.kind] = registration.key;
  lease.registrations = std::move(*registrations);
  const auto [placed, is_new] = leases_.insert_or_assign(node_slab, std::move(lease));
  FARPAGE_CHECK(is_new, "slab %u has two leases", node_slab);
  log::info("node slab_leased slab={} generation={} region={} region_slab={} replica={}", node_slab,
            lent.generation.value, borrower.region.value, borrower.slab.value, borrower.replica);
  return placed->second.reply;
}

bool Lender::is_in_use(Lease& lease) const {
  const uint32_t group = lease.borrower.session_group;
  if (group == 0 || !options_.session_groups) return true;
  const std::vector<uint32_t> groups = options_.session_groups();
  const bool is_listed = groups.size() >= rdma::SessionFences::kMaxGroups ||
                         std::ranges::find(groups, group) != groups.end();
  if (is_listed) lease.unknown_since = Instant{0};
  if (is_listed) return true;
  const Instant now = SteadyClock::read();
  if (lease.unknown_since.count() == 0) lease.unknown_since = now;
  return now - lease.unknown_since < options_.unknown_for;
}

Status Lender::end(Leases::iterator held) {
  const uint32_t node_slab = held->first;
  const Generation generation = held->second.reply.generation;
  withdraw_all(held->second.registrations);
  leases_.erase(held);
  return pool_.take_back(node_slab, generation);
}

Status Lender::revoke(uint32_t node_slab, Generation generation) {
  {
    const MutexLock lock(mutex_);
    FARPAGE_TRY(status, pool_.status(node_slab));
    // The pool returns the reason: an unknown slab, a stale generation, or success (already over).
    if (status.generation != generation || status.state != SlabState::kLeased)
      return pool_.take_back(node_slab, generation);
    const auto held = leases_.find(node_slab);
    FARPAGE_CHECK(held != leases_.end(), "slab %u is leased by nobody", node_slab);
    FARPAGE_TRY_VOID(end(held));
  }
  returned_.notify_all();
  log::info("node slab_revoked slab={} generation={}", node_slab, generation.value);
  return {};
}

Status Lender::add(std::span<const uint32_t> node_slabs, uint64_t in_all) {
  FARPAGE_TRY_VOID(pool_.add(node_slabs, in_all));
  log::info("node slabs_added count={} lends={}", node_slabs.size(), pool_.slab_count());
  return {};
}

Status Lender::withdraw(std::span<const uint32_t> node_slabs) {
  FARPAGE_TRY_VOID(pool_.withdraw(node_slabs, kScrubWait));
  log::info("node slabs_withdrawn count={} lends={}", node_slabs.size(), pool_.slab_count());
  return {};
}

Result<rdma::QueuePairEndpoint> Lender::connect(const rdma::QueuePairEndpoint& peer) {
  for (const auto& host : hosts_)
    if (host->address().kind == rdma::TransportKind::kVerbs) return host->accept(peer);
  return fail(ErrorCode::kUnsupported, "this node offers no verbs transport");
}

void Lender::refuse_new_leases() {
  const MutexLock lock(mutex_);
  refusing_ = true;
}

bool Lender::refuses_new_leases() const {
  const MutexLock lock(mutex_);
  return refusing_;
}

bool Lender::wait_until_nothing_leased(Nanoseconds limit) {
  MutexLock lock(mutex_);
  return returned_.wait_for(lock, limit,
                            [this]() FARPAGE_REQUIRES(mutex_) { return leases_.empty(); });
}

uint32_t Lender::lendable_slabs() const {
  if (refuses_new_leases()) return 0;
  const SlabCounts counts = pool_.counts();
  return counts.free + counts.scrubbing;
}

std::vector<rdma::TransportAddress> Lender::addresses() const {
  std::vector<rdma::TransportAddress> addresses;
  for (const auto& host : hosts_) addresses.push_back(host->address());
  return addresses;
}

std::vector<TransportReport> Lender::reports() const {
  std::vector<TransportReport> reports;
  for (const auto& host : hosts_) reports.push_back({host->address().kind, host->counters()});
  return reports;
}

}  // namespace farpage::node
