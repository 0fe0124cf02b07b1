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

Result<Welcome> shake_hands(int socket, const Hello& hello, Instant deadline) {
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
  if (welcome->packs_writes && !hello.packs_writes)
    return fail(ErrorCode::kUnsupported, "the node grants what was not asked for");
  return *welcome;
}

struct Greeted {
  Fd socket;
  Welcome welcome;
};

// `name`: the node's, for errors.
Result<Greeted> greet(const std::string& name, const HostPort& node, Hello hello,
                      PackWrites pack_writes, Instant deadline) {
  FARPAGE_TRY(socket, connect_to(node.host, node.port, deadline));
  hello.packs_writes = pack_writes == PackWrites::kAlways ||
                       (pack_writes == PackWrites::kOnSlowWire && !is_to_own_host(socket.get()));
  const Result<Welcome> welcome = shake_hands(socket.get(), hello, deadline);
  if (welcome) return Greeted{std::move(socket), *welcome};
  const ErrorCode code = welcome.error().code;
  if (!hello.packs_writes || code == ErrorCode::kTimedOut || code == ErrorCode::kUnsupported)
    return fail_with(name, welcome.error());
  // Perhaps of an older release, which closes when it is asked for what it does not know.
  return greet(name, node, hello, PackWrites::kNever, deadline);
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
    const Hello hello{kProtocolVersion, limits.operations_in_flight, options.session};
    FARPAGE_TRY(greeted, greet(address.text, *node, hello, options.pack_writes, deadline));
    limits.operation_bytes = std::min(limits.operation_bytes, greeted.welcome.operation_bytes);
    std::unique_ptr<WritePacker> packer;
    if (greeted.welcome.packs_writes) {
      FARPAGE_TRY(made, WritePacker::create(options.pack_writes));
      packer = std::move(made);
    }
    return std::make_unique<TcpChannel>(std::move(greeted.socket), address.text, options, limits,
                                        std::move(packer));
  }
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Transport> make_tcp_transport() {
  return std::make_unique<tcp::TcpTransport>();
}

}  // namespace farpage::rdma
