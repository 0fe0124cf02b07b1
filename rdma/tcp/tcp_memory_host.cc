#include <fmt/format.h>
#include <sys/socket.h>

#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "rdma/tcp/data_server.h"
#include "rdma/tcp/socket.h"
#include "rdma/tcp/tcp.h"

namespace farpage::rdma {
namespace tcp {
namespace {

constexpr unsigned kMaxServerThreads = 64;

Status check(const TcpHostOptions& options) {
  if (options.server_threads == 0 || options.server_threads > kMaxServerThreads)
    return fail(ErrorCode::kInvalid,
                fmt::format("server_threads must be 1 to {}", kMaxServerThreads));
  if (options.max_connections == 0)
    return fail(ErrorCode::kInvalid, "max_connections must be at least 1");
  if (options.advertise_host.empty() && is_wildcard(options.listen_host))
    return fail(ErrorCode::kInvalid,
                "advertise_host is needed when listen_host is a wildcard: give the name or address "
                "under which borrowers reach this node");
  return {};
}

// Threads: any.
class TcpMemoryHost final : public MemoryHost {
 public:
  TcpMemoryHost(const TcpHostOptions& options, Fd listener, TransportAddress address)
      : options_(options), listener_(std::move(listener)), address_(std::move(address)) {
    shared_.fences = options.fences ? options.fences : std::make_shared<SessionFences>();
  }

  ~TcpMemoryHost() override {
    ::shutdown(listener_.get(), SHUT_RDWR);
    for (const auto& server : servers_) server->stop();
  }

  Status start() {
    for (unsigned i = 0; i < options_.server_threads; ++i) {
      FARPAGE_TRY(server, DataServer::create(options_, listener_.get(), shared_));
      servers_.push_back(std::move(server));
    }
    return {};
  }

  TransportAddress address() const override { return address_; }

  Result<RemoteKey> expose(const SlabMemory& slab, Generation generation,
                           SessionGroup /*borrower*/) override {
    return shared_.keys.insert(slab, generation);
  }

  void withdraw(RemoteKey key) override {
    KeyTable::Withdrawal withdrawal = shared_.keys.withdraw(key);
    if (withdrawal.drained_within(options_.withdraw_grace)) return;
    // A peer does not receive its replies. Closing its connection ends the last use of the memory.
    for (const auto& server : servers_) server->disconnect_holders();
  }

  Result<QueuePairEndpoint> accept(const QueuePairEndpoint& /*peer*/) override {
    return fail(ErrorCode::kUnsupported, "the tcp transport has no queue pairs");
  }

  HostCounters counters() const override {
    const DataCounters& counters = shared_.counters;
    const auto get = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
    HostCounters result;
    result.reads = get(counters.reads);
    result.writes = get(counters.writes);
    result.bytes_read = get(counters.bytes_read);
    result.bytes_written = get(counters.bytes_written);
    result.bytes_saved = get(counters.bytes_saved);
    result.refused = get(counters.refused);
    result.malformed = get(counters.malformed);
    result.peers = get(shared_.connections);
    return result;
  }

 private:
  const TcpHostOptions options_;
  const Fd listener_;
  const TransportAddress address_;
  SharedState shared_;
  std::vector<std::unique_ptr<DataServer>> servers_;
};

}  // namespace
}  // namespace tcp

Result<std::unique_ptr<MemoryHost>> make_tcp_memory_host(TcpHostOptions options) {
  FARPAGE_TRY_VOID(tcp::check(options));
  FARPAGE_TRY(listener, tcp::listen_on(options.listen_host, options.port));
  FARPAGE_TRY(port, tcp::port_of(listener.get()));
  TransportAddress address{
      TransportKind::kTcp,
      to_text(HostPort{
          options.advertise_host.empty() ? options.listen_host : options.advertise_host, port})};
  auto host =
      std::make_unique<tcp::TcpMemoryHost>(options, std::move(listener), std::move(address));
  FARPAGE_TRY_VOID(host->start());
  log::info("tcp_host listening host={} port={} threads={}", options.listen_host, port,
            options.server_threads);
  return host;
}

}  // namespace farpage::rdma
