#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "base/unix_socket.h"
#include "rdma/held_peers.h"
#include "rdma/limits.h"
#include "rdma/log_limiter.h"
#include "rdma/shm/seqpacket.h"
#include "rdma/shm/shm.h"
#include "rdma/shm/shm_peers.h"

namespace farpage::rdma {
namespace shm {
namespace {

// Threads: any. One service thread accepts borrowers and answers their requests.
class ShmMemoryHost final : public MemoryHost {
 public:
  ShmMemoryHost(ShmHostOptions options, Fd listener, Fd wake)
      : options_(std::move(options)),
        fences_(options_.fences ? options_.fences : std::make_shared<SessionFences>()),
        listener_(std::move(listener)),
        wake_(std::move(wake)) {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "farpage-shm");
  }

  ~ShmMemoryHost() override {
    peers_.withdraw_all(options_.withdraw_grace);  // stops copies in progress in the borrowers
    const uint64_t one = 1;
    const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    FARPAGE_CHECK(written == sizeof one, "write to an eventfd returned %zd", written);
    thread_.join();
    (void)::unlink(options_.socket_path.c_str());
  }

  TransportAddress address() const override {
    return {TransportKind::kShm, to_text(ShmAddress{boot_id(), options_.socket_path})};
  }

  Result<RemoteKey> expose(const SlabMemory& slab, Generation generation,
                           SessionGroup /*borrower*/) override {
    return peers_.expose(slab, generation);
  }

  void withdraw(RemoteKey key) override {
    if (!peers_.withdraw(key, options_.withdraw_grace))
      log::warn("shm_host withdraw_overdue reason=\"a borrower stopped in the middle of a copy\"");
  }

  Result<QueuePairEndpoint> accept(const QueuePairEndpoint& /*peer*/) override {
    return fail(ErrorCode::kUnsupported, "the shm transport has no queue pairs");
  }

  HostCounters counters() const override { return peers_.counters(); }

 private:
  void run();
  void wait_for_events(std::vector<pollfd>& entries) const;
  void accept_peer();
  // False: remove the peer.
  bool serve(ShmPeer& peer);
  void log_closed(const char* reason);

  const ShmHostOptions options_;
  const std::shared_ptr<SessionFences> fences_;
  const Fd listener_;
  const Fd wake_;
  ShmPeers peers_;
  LogLimiter log_limiter_;
  std::vector<std::shared_ptr<ShmPeer>> served_;  // service thread only
  HeldPeers held_;                                // by user
  std::thread thread_;
};

// Fills `entries` with the events of wake_, the listener, and each of served_.
void ShmMemoryHost::wait_for_events(std::vector<pollfd>& entries) const {
  const bool full = served_.size() >= options_.max_peers;
  entries.clear();
  entries.push_back({wake_.get(), POLLIN, 0});
  // New borrowers wait in the listener's queue until one leaves.
  entries.push_back({full ? -1 : listener_.get(), POLLIN, 0});
  const Instant now = SteadyClock::read();
  int timeout_ms = -1;
  for (const auto& peer : served_) {
    const Nanoseconds hold = peer->served_from - now;
    const bool held = hold.count() > 0;
    entries.push_back({held ? -1 : peer->socket.get(), POLLIN, 0});
    if (!held) continue;
    const int hold_ms = static_cast<int>(std::chrono::ceil<Milliseconds>(hold).count());
    timeout_ms = timeout_ms < 0 ? hold_ms : std::min(timeout_ms, hold_ms);
  }
  if (::poll(entries.data(), entries.size(), timeout_ms) >= 0) return;
  FARPAGE_CHECK(errno == EINTR || errno == ENOMEM, "poll failed with errno %d", errno);
  for (pollfd& entry : entries) entry.revents = 0;
}

void ShmMemoryHost::run() {
  std::vector<pollfd> entries;
  for (;;) {
    wait_for_events(entries);
    if (entries[0].revents != 0) break;
    std::vector<std::shared_ptr<ShmPeer>> staying;
    for (size_t i = 0; i < served_.size(); ++i) {
      if (entries[i + 2].revents == 0 || serve(*served_[i])) {
        staying.push_back(served_[i]);
      } else {
        peers_.remove(served_[i]);
      }
    }
    served_ = std::move(staying);
    if (entries[1].revents != 0) accept_peer();
  }
  for (const auto& peer : served_) {
    ::shutdown(peer->socket.get(), SHUT_RDWR);
    peers_.remove(peer);
  }
  served_.clear();
}

void ShmMemoryHost::accept_peer() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) {
    // Out of descriptors: the connection stays in the queue; do not retry in a loop.
    if (errno == EMFILE || errno == ENFILE) {
      log_closed("out of file descriptors: raise the limit (ulimit -n)");
      std::this_thread::sleep_for(Milliseconds(10));
    }
    return;
  }
  if (const Status user = check_peer_user(socket.get()); !user)
    return log_closed(user.error().context.c_str());
  const Result<ucred> credentials = peer_credentials(socket.get());
  if (!credentials) return log_closed(credentials.error().context.c_str());
  Result<std::shared_ptr<ShmPeer>> peer = peers_.add(std::move(socket));
  if (!peer) return log_closed(peer.error().context.c_str());
  const Instant now = SteadyClock::read();
  (*peer)->user = std::to_string(credentials->uid);
  (*peer)->served_from = now + held_.hold_of((*peer)->user, now);
  served_.push_back(std::move(*peer));
}

bool ShmMemoryHost::serve(ShmPeer& peer) {
  std::array<std::byte, kRequestBytes + 1> buffer{};
  const ReceivedPacket packet = receive_packet(peer.socket.get(), buffer);
  if (packet.outcome == PacketOutcome::kWouldBlock) return true;
  if (packet.outcome == PacketOutcome::kPeerGone) return false;
  const std::optional<Request> request = decode_request(std::span(buffer).first(packet.bytes));
  if (!request || peer.greeted != (request->kind == RequestKind::kAttach)) {
    peers_.count_malformed();
    log_closed(request ? "a request out of order" : "a malformed request");
    return false;
  }
  const ShmPeers::Answer answer = peers_.answer(peer, *request);
  if (request->kind == RequestKind::kHello) peer.pass = fences_->enter(request->session);
  if (send_packet(peer.socket.get(), encode(answer.reply), answer.descriptor) !=
      PacketOutcome::kDone) {
    log_closed("it does not read its replies");
    return false;
  }
  if (answer.guesses) {
    log_closed("the peer used unknown keys");
    held_.hold(peer.user, SteadyClock::read() + kGuessPenalty);
    return false;
  }
  return answer.reply.status != ReplyStatus::kVersion;
}

void ShmMemoryHost::log_closed(const char* reason) {
  if (const auto held = log_limiter_.allow(SteadyClock::read()))
    log::warn("shm_host connection_closed reason=\"{}\" suppressed={}", reason, *held);
}

}  // namespace
}  // namespace shm

Result<std::unique_ptr<MemoryHost>> make_shm_memory_host(ShmHostOptions options) {
  if (options.max_peers == 0) return fail(ErrorCode::kInvalid, "max_peers must be at least 1");
  FARPAGE_TRY(listener, shm::listen_at(options.socket_path));
  FARPAGE_TRY(wake, Fd::from_call(::eventfd(0, EFD_CLOEXEC), "eventfd"));
  log::info("shm_host listening path={}", options.socket_path);
  return std::make_unique<shm::ShmMemoryHost>(std::move(options), std::move(listener),
                                              std::move(wake));
}

}  // namespace farpage::rdma
