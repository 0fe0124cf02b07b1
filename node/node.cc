#include "node/node.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "http/url.h"

namespace farpage::node {
namespace {

// A 410: the coordinator does not know this node, or knows another incarnation.
bool is_forgotten(const Status& contact) {
  return !contact && contact.error().code == ErrorCode::kNotFound;
}

// Errors that a retry cannot fix. kConflict: another node has this name.
bool is_refusal(const Error& error) {
  return error.code == ErrorCode::kDenied || error.code == ErrorCode::kInvalid ||
         error.code == ErrorCode::kUnsupported || error.code == ErrorCode::kConflict;
}

}  // namespace

std::string_view to_string(Membership membership) {
  switch (membership) {
    case Membership::kJoining:
      return "joining";
    case Membership::kJoined:
      return "joined";
    case Membership::kRefused:
      return "refused";
    case Membership::kLeaving:
      return "leaving";
    case Membership::kLeft:
      return "left";
  }
  return "unknown";
}

Result<std::unique_ptr<Node>> Node::create(NodeOptions options, std::unique_ptr<SlabPool> pool,
                                           std::vector<std::unique_ptr<rdma::MemoryHost>> hosts,
                                           std::unique_ptr<coordinator::Client> client) {
  std::unique_ptr<Node> node(
      new Node(std::move(options), std::move(pool), std::move(hosts), std::move(client)));
  FARPAGE_TRY_VOID(node->start());
  return node;
}

Node::Node(NodeOptions options, std::unique_ptr<SlabPool> pool,
           std::vector<std::unique_ptr<rdma::MemoryHost>> hosts,
           std::unique_ptr<coordinator::Client> client)
    : options_(std::move(options)),
      incarnation_(random_u64()),
      pool_(std::move(pool)),
      hosts_(std::move(hosts)),
      lender_(*pool_, hosts_, {.session_groups = options_.session_groups}),
      client_(std::move(client)) {}

Status Node::start() {
  FARPAGE_TRY(agent, Agent::create(options_.agent, lender_, [this] { return report(); }));
  agent_ = std::move(agent);
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "node-heartbeat");
    keep_membership();
  });
  return {};
}

Node::~Node() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Node::agent_url() const {
  const std::string& host =
      options_.advertise_host.empty() ? options_.agent.host : options_.advertise_host;
  return http::to_text({host, agent_->port()});
}

coordinator::NodeJoin Node::join_message() const {
  coordinator::NodeJoin join;
  join.id = options_.id;
  join.incarnation = incarnation_;
  join.agent_url = agent_url();
  SlabPool::Extent extent = pool_->extent();
  join.capacity_bytes = extent.slabs() * pool_->slab_bytes();
  join.withdrawn = std::move(extent.withdrawn);
  join.slab_bytes = pool_->slab_bytes();
  join.spill = pool_->is_in_files();
  join.version = FARPAGE_VERSION;
  join.transports = lender_.addresses();
  join.labels = options_.labels;
  join.identity = options_.identity;
  return join;
}

NodeReport Node::report() const {
  NodeReport report;
  report.id = options_.id;
  report.incarnation = incarnation_;
  report.leaving = lender_.refuses_new_leases();
  report.slab_bytes = pool_->slab_bytes();
  report.slabs = lender_.slab_counts();
  report.addresses = lender_.addresses();
  report.transports = lender_.reports();
  const MutexLock lock(mutex_);
  report.joined = in_contact_;
  return report;
}

Membership Node::membership() const {
  const MutexLock lock(mutex_);
  return membership_;
}

void Node::set_membership(Membership membership) {
  const MutexLock lock(mutex_);
  // Only kLeft may follow kLeaving.
  if (membership_ == Membership::kLeaving && membership != Membership::kLeft) return;
  membership_ = membership;
}

void Node::note_contact(const Status& contact) {
  const bool answered = contact.has_value() || contact.error().code != ErrorCode::kUnavailable;
  bool was_away = false;
  {
    const MutexLock lock(mutex_);
    in_contact_ = contact.has_value();
    was_away = std::exchange(told_away_, !answered);
  }
  if (!answered && !was_away)
    log::warn("node coordinator_away reason=\"{}\" note=\"leases stay valid; retrying\"",
              contact.error().message());
  if (answered && was_away) log::info("node coordinator_back");
}

Milliseconds Node::join_once(Milliseconds backoff) {
  const Result<coordinator::NodeInfo> joined = client_->join(join_message());
  const Status contact = joined ? Status() : Status(tl::unexpected(joined.error()));
  note_contact(contact);
  if (joined) {
    ever_joined_ = true;
    refusal_said_.clear();
    set_membership(Membership::kJoined);
    log::info("node joined id={} slabs={} agent={}", options_.id.value, pool_->slab_count(),
              agent_url());
    if (options_.on_joined) options_.on_joined(*joined);
    return options_.heartbeat_interval;
  }
  if (!ever_joined_ && is_refusal(joined.error())) {
    set_membership(Membership::kRefused);
    if (options_.on_refused)
      options_.on_refused(joined.error());
    else
      log::error("node refused reason=\"{}\"", joined.error().message());
  } else if (joined.error().code == ErrorCode::kConflict && pool_->counts().leased == 0) {
    log::info("node removed reason=\"{}\"", joined.error().message());
    set_membership(Membership::kLeft);
    if (options_.on_removed) options_.on_removed(joined.error());
  } else if (std::string reason = joined.error().message();
             joined.error().code != ErrorCode::kUnavailable && reason != refusal_said_) {
    log::warn("node join_refused reason=\"{}\" note=\"trying again\"", reason);
    refusal_said_ = std::move(reason);
  }
  return backoff;
}

Milliseconds Node::beat_once() {
  coordinator::NodeHeartbeat heartbeat;
  heartbeat.incarnation = incarnation_;
  heartbeat.free_slabs = lender_.lendable_slabs();
  heartbeat.counters = counters_of(report());
  if (options_.session_groups) heartbeat.session_groups = options_.session_groups();
  const Status contact = client_->heartbeat_node(options_.id, heartbeat);
  note_contact(contact);
  if (is_forgotten(contact)) {
    set_membership(Membership::kJoining);
    if (membership() == Membership::kLeaving) return options_.heartbeat_interval;
    log::info("node forgotten note=\"the coordinator asks to join again\"");
    return Milliseconds(0);
  }
  return options_.heartbeat_interval;
}

void Node::keep_membership() {
  Milliseconds backoff = options_.first_backoff;
  while (true) {
    Milliseconds pause = options_.heartbeat_interval;
    switch (membership()) {
      case Membership::kJoining:
        pause = join_once(backoff);
        backoff = std::min(backoff * 2, options_.longest_backoff);
        break;
      case Membership::kLeaving:
        if (ever_joined_ && drain_due_.load(std::memory_order_relaxed)) tell_drain();
        [[fallthrough]];
      case Membership::kJoined:
        backoff = options_.first_backoff;
        pause = beat_once();
        break;
      case Membership::kRefused:
      case Membership::kLeft:
        break;
    }
    MutexLock lock(mutex_);
    changed_.wait_for(lock, pause, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; });
    if (stopping_) return;
  }
}

// Until it is known nobody moves what is lent here: it is told again with the next heartbeats. A
// coordinator that has forgotten this node knows none of its leases, and there is nothing to move.
void Node::tell_drain() {
  const Status told = client_->drain_node(options_.id);
  const bool is_due = !told && !is_forgotten(told);
  const bool was_due = drain_due_.exchange(is_due, std::memory_order_relaxed);
  if (!told && !was_due)
    log::warn("node drain_failed reason=\"{}\"{}", told.error().message(),
              is_due ? " note=\"trying again\"" : "");
}

bool Node::leave(Milliseconds limit) {
  lender_.refuse_new_leases();
  const bool is_member = membership() == Membership::kJoined;
  set_membership(Membership::kLeaving);
  if (is_member)
    tell_drain();
  else
    drain_due_.store(true, std::memory_order_relaxed);
  const uint32_t lent = pool_->counts().leased;
  if (lent > 0) log::info("node leaving leased_slabs={} limit_ms={}", lent, limit.count());
  const bool drained = lender_.wait_until_nothing_leased(limit);
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (ever_joined_) {
    const Status removed = client_->remove_node(options_.id, !drained);
    if (!removed) log::warn("node removal_failed reason=\"{}\"", removed.error().message());
  }
  set_membership(Membership::kLeft);
  log::info("node left drained={} slabs_still_leased={}", drained, pool_->counts().leased);
  return drained;
}

}  // namespace farpage::node
