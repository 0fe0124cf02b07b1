#include "pager/links/connector.h"

#include <pthread.h>

#include <algorithm>

#include "base/log.h"

namespace farpage::pager {
namespace {

constexpr Milliseconds kIdle{1000};
constexpr Milliseconds kFirstPause{5};
constexpr Milliseconds kLongestPause{500};
// A channel that lived shorter than this counts against its transport.
constexpr Nanoseconds kShortLife = Seconds(10);
constexpr size_t kMaxBrokenInARow = 3;

}  // namespace

Connector::Connector(const ConnectorParts& parts, coordinator::Client& client,
                     std::vector<std::unique_ptr<rdma::Transport>>& transports,
                     std::vector<LinkPort*> ports, const Doorbell& bell)
    : parts_(parts),
      client_(client),
      transports_(transports),
      ports_(std::move(ports)),
      bell_(bell),
      thread_([this] { run(); }) {}

Connector::~Connector() {
  bell_.ring();
}

void Connector::run() {
  (void)pthread_setname_np(pthread_self(), "fp-connector");
  while (!parts_.stopping.load(std::memory_order_acquire)) {
    const Milliseconds pause = serve_ports();
    (void)bell_.wait(pause);
  }
}

template <typename Visit>
void Connector::for_each_wanted(Visit&& visit) {
  const size_t nodes = parts_.nodes.size();
  const bool has_file = parts_.nodes.file() != nullptr;
  for (LinkPort* port : ports_) {
    for (size_t i = 0; i < nodes + (has_file ? 1 : 0); ++i) {
      const NodeIndex node = i < nodes ? NodeIndex{static_cast<uint16_t>(i)} : kFileNode;
      if (parts_.stopping.load(std::memory_order_relaxed)) return;
      if (port->wants(node)) visit(*port, node);
    }
  }
}

bool Connector::connect_if_due(LinkPort& port, NodeIndex node) {
  Attempt& attempt = attempts_[{&port, node}];
  if (SteadyClock::read() < attempt.not_before) return false;
  connect(port, node, attempt);
  return true;
}

void Connector::connect_reachable() {
  for_each_wanted([&](LinkPort& port, NodeIndex node) {
    if (!parts_.peers[node].is_unreachable()) (void)connect_if_due(port, node);
  });
}

// An attempt at a node that does not answer takes its whole timeout, and each port makes its own.
// Requests for other nodes come before each of them.
Milliseconds Connector::serve_ports() {
  connect_reachable();
  for_each_wanted([&](LinkPort& port, NodeIndex node) {
    if (parts_.peers[node].is_unreachable() && connect_if_due(port, node)) connect_reachable();
  });
  Milliseconds pause = kIdle;
  for_each_wanted([&](LinkPort& port, NodeIndex node) {
    const Nanoseconds left = attempts_[{&port, node}].not_before - SteadyClock::read();
    pause = std::clamp(std::chrono::ceil<Milliseconds>(left), Milliseconds(1), pause);
  });
  return pause;
}

void Connector::connect(LinkPort& port, NodeIndex node, Attempt& attempt) {
  const coordinator::NodeInfo info = parts_.nodes.get(node);
  const Instant start = SteadyClock::read();
  if (const std::unique_ptr<rdma::Channel> broken = port.take_retired(node))
    log::warn("pager: channel_broken port={} node={} transport={} reason=\"{}\"", port.name(),
              info.join.id.value, to_string(broken->kind()), broken->why_broken());
  if (attempt.connected_at.count() != 0) {
    parts_.counts.channels_broken.fetch_add(1, std::memory_order_relaxed);
    const bool short_life = start - attempt.connected_at < kShortLife;
    attempt.broken_in_a_row = short_life ? attempt.broken_in_a_row + 1 : 0;
    attempt.connected_at = Instant{0};
    if (attempt.broken_in_a_row >= kMaxBrokenInARow) {
      attempt.preferred = (attempt.preferred + 1) % transports_.size();
      attempt.broken_in_a_row = 0;
    }
  }
  std::string reasons;
  for (size_t i = 0; i < transports_.size(); ++i) {
    rdma::Transport& transport = *transports_[(attempt.preferred + i) % transports_.size()];
    Result<std::unique_ptr<rdma::Channel>> channel = connect_by(transport, port, info);
    if (!channel) {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", to_string(transport.kind()),
                             channel.error().message());
      if (channel.error().code != ErrorCode::kUnsupported)
        parts_.counts.transport_fallbacks.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    log::debug("pager: connected port={} node={} transport={} in_us={}", port.name(),
               info.join.id.value, to_string(transport.kind()),
               (SteadyClock::read() - start).count() / 1000);
    parts_.counts.channels_connected.fetch_add(1, std::memory_order_relaxed);
    parts_.counts.connected_by_kind[static_cast<size_t>(transport.kind())].fetch_add(
        1, std::memory_order_relaxed);
    parts_.peers[node].unreachable_since_ns.store(0, std::memory_order_relaxed);
    attempt.connected_at = SteadyClock::read();
    attempt.pause = Milliseconds(0);
    attempt.not_before = Instant{0};
    port.deliver(node, std::move(*channel));
    return;
  }
  int64_t reachable = 0;
  (void)parts_.peers[node].unreachable_since_ns.compare_exchange_strong(reachable, start.count(),
                                                                        std::memory_order_relaxed);
  if (attempt.pause.count() == 0)
    log::warn("pager: connect_failed port={} node={} reason=\"{}\"", port.name(),
              info.join.id.value, reasons);
  attempt.pause = std::clamp(attempt.pause * 2, kFirstPause, kLongestPause);
  attempt.not_before = SteadyClock::read() + attempt.pause;
}

Result<std::unique_ptr<rdma::Channel>> Connector::connect_by(rdma::Transport& transport,
                                                             LinkPort& port,
                                                             const coordinator::NodeInfo& node) {
  const auto address =
      std::find_if(node.join.transports.begin(), node.join.transports.end(),
                   [&](const rdma::TransportAddress& a) { return a.kind == transport.kind(); });
  if (address == node.join.transports.end())
    return fail(ErrorCode::kUnsupported, "the node does not offer it");
  rdma::ChannelOptions options = parts_.channel;
  options.buffer = port.buffer();
  options.session = port.session();
  options.pack_writes = port.pack_writes();
  return transport.connect(*address, options, [&](const rdma::QueuePairEndpoint& ours) {
    return client_.exchange(node.join.id, ours);
  });
}

}  // namespace farpage::pager
