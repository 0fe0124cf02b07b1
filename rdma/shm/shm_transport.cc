#include <fmt/format.h>
#include <poll.h>

#include <array>

#include "base/host.h"
#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"
#include "rdma/shm/seqpacket.h"
#include "rdma/shm/shm.h"
#include "rdma/shm/shm_channel.h"

namespace farpage::rdma {
namespace shm {
namespace {

// Hello and its answer.
Result<ShmChannel::Connection> shake_hands(Fd socket, const std::string& name, uint64_t session,
                                           Instant deadline) {
  if (send_packet(socket.get(), encode(Request{.session = session}), -1) != PacketOutcome::kDone)
    return fail(ErrorCode::kUnavailable, "the node hung up");
  std::array<std::byte, kReplyBytes + 1> buffer{};
  ReceivedPacket packet;
  while (packet.outcome == PacketOutcome::kWouldBlock) {
    const Instant now = SteadyClock::read();
    if (now >= deadline) return fail(ErrorCode::kTimedOut, "the node did not answer in time");
    const auto left = std::chrono::ceil<Milliseconds>(deadline - now).count();
    pollfd entry{socket.get(), POLLIN, 0};
    (void)::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    packet = receive_packet(socket.get(), buffer);
  }
  if (packet.outcome == PacketOutcome::kPeerGone)
    return fail(ErrorCode::kUnavailable, "the node hung up");
  const std::optional<Reply> reply = decode_reply(std::span(buffer).first(packet.bytes));
  if (!reply) return fail(ErrorCode::kUnsupported, "is not the shm socket of a farpage node");
  if (reply->version != kProtocolVersion || reply->status != ReplyStatus::kOk)
    return fail(ErrorCode::kUnsupported,
                fmt::format("the node speaks version {} of the shm protocol and this program "
                            "version {}: run the same release on both",
                            reply->version, kProtocolVersion));
  if (!packet.descriptor.valid() || reply->bytes < sizeof(PeerPage))
    return fail(ErrorCode::kUnsupported, "the node sent no shared page");
  FARPAGE_TRY(page, Mapping::shared(packet.descriptor.get(), sizeof(PeerPage)));
  return ShmChannel::Connection{std::move(socket), std::move(page), reply->lease, name};
}

class ShmTransport final : public Transport {
 public:
  TransportKind kind() const override { return TransportKind::kShm; }

  Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                           const ChannelOptions& options,
                                           const QueuePairExchange& /*exchange*/) override {
    if (address.kind != TransportKind::kShm)
      return fail(ErrorCode::kUnsupported, "the address is not a shm one");
    const auto node = shm_address_from(address.text);
    if (!node)
      return fail(ErrorCode::kInvalid, fmt::format("'{}' is not BOOT_ID:/path", address.text));
    if (node->boot_id.empty() || node->boot_id != boot_id())
      return fail(ErrorCode::kUnsupported,
                  "the node runs on another host (its boot_id differs): shared memory does not "
                  "reach there");
    FARPAGE_TRY_VOID(check_buffer(options));
    const Instant deadline = deadline_after(SteadyClock::read(), options.connect_timeout);
    FARPAGE_TRY(socket, connect_at(node->socket_path));
    FARPAGE_TRY_VOID(check_peer_user(socket.get()));
    Result<ShmChannel::Connection> connection =
        shake_hands(std::move(socket), node->socket_path, options.session, deadline);
    if (!connection) return fail_with(node->socket_path, connection.error());
    return std::make_unique<ShmChannel>(std::move(*connection), options, limits_for(options),
                                        process_);
  }

 private:
  const std::shared_ptr<ProcessState> process_ = std::make_shared<ProcessState>();
};

}  // namespace
}  // namespace shm

std::unique_ptr<Transport> make_shm_transport() {
  return std::make_unique<shm::ShmTransport>();
}

}  // namespace farpage::rdma
