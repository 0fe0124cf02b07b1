#include <fmt/format.h>

#include "base/host_port.h"
#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"
#include "rdma/tcp/frame.h"
#include "rdma/tcp/socket.h"
#include "rdma/tcp/tcp.h"
#include "rdma/tcp/tcp_channel.h"

namespace farpage::rdma {
namespace tcp {
namespace {

// Hello and Welcome; returns the longest operation that the node accepts.
Result<uint32_t> shake_hands(int socket, const Hello& hello, Instant deadline) {
  FARPAGE_TRY_VOID(send_all(socket, encode(hello), deadline));
  std::array<std::byte, kWelcomeBytes> bytes{};
  FARPAGE_TRY_VOID(receive_all(socket, bytes, deadline));
  const Decoded<Welcome> welcome = decode_welcome(bytes);
  if (!welcome)
    return fail(ErrorCode::kUnsupported,
                fmt::format("is not a farpage node's data port ({})", to_string(welcome.error())));
  if (welcome->version != kProtocolVersion || welcome->status != WireStatus::kOk)
    return fail(ErrorCode::kUnsupported,
                fmt::format("the node speaks version {} of the TCP protocol and this program "
                            "version {}: run the same release on both",
                            welcome->version, kProtocolVersion));
  if (welcome->operation_bytes < kPageBytes)
    return fail(ErrorCode::kUnsupported, "the node accepts no operation of a page");
  return welcome->operation_bytes;
}

class TcpTransport final : public Transport {
 public:
  TransportKind kind() const override { return TransportKind::kTcp; }

  Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                           const ChannelOptions& options,
                                           const QueuePairExchange& /*exchange*/) override {
    if (address.kind != TransportKind::kTcp)
      return fail(ErrorCode::kUnsupported, "the address is not a tcp one");
    const auto node = host_port_from(address.text);
    if (!node) return fail(ErrorCode::kInvalid, fmt::format("'{}' is not host:port", address.text));
    FARPAGE_TRY_VOID(check_buffer(options));
    ChannelLimits limits = limits_for(options);
    const Instant deadline = deadline_after(SteadyClock::read(), options.connect_timeout);
    FARPAGE_TRY(socket, connect_to(node->host, node->port, deadline));
    const Hello hello{kProtocolVersion, limits.operations_in_flight, options.session};
    const Result<uint32_t> operation_bytes = shake_hands(socket.get(), hello, deadline);
    if (!operation_bytes) return fail_with(address.text, operation_bytes.error());
    limits.operation_bytes = std::min(limits.operation_bytes, *operation_bytes);
    return std::make_unique<TcpChannel>(std::move(socket), address.text, options, limits);
  }
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Transport> make_tcp_transport() {
  return std::make_unique<tcp::TcpTransport>();
}

}  // namespace farpage::rdma
