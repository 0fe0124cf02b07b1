#include "rdma/tcp/data_server.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "rdma/tcp/socket.h"

namespace farpage::rdma::tcp {
namespace {

constexpr unsigned kRingEntries = 512;

// liburing returns the tag unchanged.
void set_tag(io_uring_sqe* entry, const void* tag) {
  io_uring_sqe_set_data(entry, const_cast<void*>(tag));
}

// For a receive or send that returned `result`. Any end but the peer's own close, such as an
// unanswered keep-alive, says nothing about its process.
SessionEnd end_of(int result) {
  const bool closed_by_peer = result == 0 || result == -ECONNRESET || result == -EPIPE;
  return closed_by_peer ? SessionEnd::kClosed : SessionEnd::kUncertain;
}

}  // namespace

DataServer::DataServer(const TcpHostOptions& options, int listener, SharedState& shared)
    : options_(options),
      listener_(listener),
      shared_(shared),
      accept_multishot_(options.server_threads == 1) {}

Result<std::unique_ptr<DataServer>> DataServer::create(const TcpHostOptions& options, int listener,
                                                       SharedState& shared) {
  std::unique_ptr<DataServer> server(new DataServer(options, listener, shared));
  FARPAGE_TRY_VOID(server->ring_.open(kRingEntries));
  FARPAGE_TRY(wake_fd, Fd::from_call(::eventfd(0, EFD_CLOEXEC), "eventfd"));
  server->wake_fd_ = std::move(wake_fd);
  server->thread_ = std::thread([raw = server.get()] { raw->run(); });
  ::pthread_setname_np(server->thread_.native_handle(), "farpage-tcp");
  return server;
}

DataServer::~DataServer() {
  stop();
}

void DataServer::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);  // pairs with the acquire in run()
  wake();
  thread_.join();
}

void DataServer::disconnect_holders() {
  disconnect_holders_.store(true, std::memory_order_release);  // pairs with on_wake()
  wake();
}

void DataServer::wake() {
  const uint64_t one = 1;
  const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
  FARPAGE_CHECK(written == sizeof one, "write to an eventfd returned %zd", written);
}

void DataServer::run() {
  arm_wake();
  arm_accept();
  bool closing_all = false;
  for (;;) {
    if (!closing_all && stopping_.load(std::memory_order_acquire)) {
      closing_all = true;
      for (const auto& peer : peers_) close(*peer, "");
    }
    if (some_closing_) forget_closed();
    if (closing_all && peers_.empty() && !accept_armed_ && !wake_armed_) return;
    wait_for_work();
    unsigned head = 0;
    unsigned handled = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(ring_.get(), head, completion) {
      handle(*completion);
      ++handled;
    }
    io_uring_cq_advance(ring_.get(), handled);
  }
}

void DataServer::wait_for_work() {
  io_uring_submit(ring_.get());
  if (!peers_.empty() && options_.spin_time.count() > 0) {
    const Instant spin_until = SteadyClock::read() + options_.spin_time;
    do {
      if (ring_.has_completion()) return;
      ::sched_yield();
    } while (SteadyClock::read() < spin_until);
  }
  io_uring_submit_and_wait(ring_.get(), 1);
}

void DataServer::handle(const io_uring_cqe& completion) {
  const auto* tag = static_cast<const Tag*>(io_uring_cqe_get_data(&completion));
  switch (tag->event) {
    case Event::kAccept:
      return on_accept(completion.res, (completion.flags & IORING_CQE_F_MORE) != 0);
    case Event::kWake:
      return on_wake();
    case Event::kTick:
      return on_tick();
    case Event::kReceive:
      return on_receive(*tag->peer, completion.res);
    case Event::kSend:
      return on_send(*tag->peer, completion.res);
    case Event::kHoldEnd:
      return on_hold_end(*tag->peer);
  }
}

void DataServer::arm_accept() {
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_accept(entry, listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (accept_multishot_) entry->ioprio |= kAcceptMultishot;
  set_tag(entry, &accept_tag_);
  accept_armed_ = true;
}

void DataServer::arm_wake() {
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_read(entry, wake_fd_.get(), &wake_value_, sizeof wake_value_, 0);
  set_tag(entry, &wake_tag_);
  wake_armed_ = true;
}

void DataServer::arm_tick() {
  if (tick_armed_) return;
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_timeout(entry, &tick_interval_, 0, 0);
  set_tag(entry, &tick_tag_);
  tick_armed_ = true;
}

void DataServer::arm_receive(Peer& peer) {
  if (peer.receiving) return;
  const std::span<std::byte> space = peer.connection.receive_space();
  if (space.empty()) return;
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_recv(entry, peer.connection.socket(), space.data(), space.size(), 0);
  set_tag(entry, &peer.receive_tag);
  peer.receiving = true;
}

void DataServer::arm_send(Peer& peer) {
  if (peer.sending) return;
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_sendmsg(entry, peer.connection.socket(), peer.connection.replies(), MSG_NOSIGNAL);
  set_tag(entry, &peer.send_tag);
  peer.sending = true;
}

void DataServer::arm_hold(Peer& peer, Nanoseconds time) {
  peer.hold_time = {time / Seconds(1), (time % Seconds(1)).count()};
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_timeout(entry, &peer.hold_time, 0, 0);
  set_tag(entry, &peer.hold_tag);
  peer.held = true;
}

void DataServer::on_accept(int result, bool more) {
  accept_armed_ = more;
  if (stopping_.load(std::memory_order_acquire)) {
    if (result >= 0) ::close(result);
    return;
  }
  if (result == -EINVAL) {
    if (!accept_multishot_) return;  // the listener is shut down: stop() follows
    accept_multishot_ = false;       // or this is a kernel before Linux 5.19
    return arm_accept();
  }
  // Out of descriptors or memory: retry at the next tick, not in a loop.
  if (result == -EMFILE || result == -ENFILE || result == -ENOMEM || result == -ENOBUFS) {
    if (const auto held = shared_.log_limiter.allow(SteadyClock::read()))
      log::error("tcp_host accept_failed error=\"{}\" suppressed={}", ::strerrordesc_np(-result),
                 *held);
    return arm_tick();
  }
  if (!more) arm_accept();
  if (result < 0) return;  // the peer was gone before it was accepted
  Fd socket(result);
  // Count before the check: several server threads accept at once.
  if (shared_.connections.fetch_add(1, std::memory_order_relaxed) >= options_.max_connections) {
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
    if (const auto held = shared_.log_limiter.allow(SteadyClock::read()))
      log::warn("tcp_host connection_refused reason=\"max_connections={} reached\" suppressed={}",
                options_.max_connections, *held);
    return;
  }
  tune(socket.get());
  limit_unacknowledged(socket.get());
  peers_.push_back(std::make_unique<Peer>(
      Connection(std::move(socket), shared_.keys, *shared_.fences, shared_.counters)));
  Peer& peer = *peers_.back();
  peer.opened = SteadyClock::read();
  peer.address = peer_address(peer.connection.socket());
  const Nanoseconds hold = shared_.held.hold_of(peer.address, peer.opened);
  if (hold.count() > 0) {
    arm_hold(peer, hold);
  } else {
    arm_receive(peer);
  }
  arm_tick();
}

void DataServer::on_wake() {
  wake_armed_ = false;
  if (!stopping_.load(std::memory_order_acquire)) arm_wake();
  if (!disconnect_holders_.exchange(false, std::memory_order_acq_rel)) return;
  for (const auto& peer : peers_) {
    if (peer->connection.holds_withdrawn_memory())
      close(*peer, "it does not take its replies and their slab is withdrawn",
            SessionEnd::kUncertain);
  }
}

void DataServer::on_tick() {
  tick_armed_ = false;
  if (stopping_.load(std::memory_order_acquire)) return;
  if (!accept_armed_) arm_accept();
  const Instant now = SteadyClock::read();
  for (const auto& peer : peers_) {
    if (peer->held) continue;
    if (!peer->connection.greeted() && now - peer->opened > options_.hello_timeout)
      close(*peer, "no hello within hello_timeout");
    if (peer->sending && now - peer->send_started > options_.stall_timeout)
      close(*peer, "the peer does not read its replies", SessionEnd::kUncertain);
  }
  if (!peers_.empty()) arm_tick();
}

void DataServer::on_receive(Peer& peer, int result) {
  peer.receiving = false;
  if (peer.closing) return;
  if (result == -EINTR || result == -EAGAIN) return arm_receive(peer);
  if (result <= 0) return close(peer, "", end_of(result));
  peer.connection.received(static_cast<size_t>(result));
  go_on(peer);
}

void DataServer::on_send(Peer& peer, int result) {
  peer.sending = false;
  if (peer.closing) return;
  if (result < 0 && result != -EINTR && result != -EAGAIN) return close(peer, "", end_of(result));
  if (result > 0 && !peer.connection.sent(static_cast<size_t>(result)))
    peer.send_started = SteadyClock::read();
  if (peer.connection.has_replies()) return arm_send(peer);
  if (peer.connection.close_after_replies()) return close(peer, peer.connection.close_reason());
  go_on(peer);
}

void DataServer::on_hold_end(Peer& peer) {
  peer.held = false;
  if (peer.closing) return;
  peer.opened = SteadyClock::read();
  arm_receive(peer);
}

void DataServer::go_on(Peer& peer) {
  if (!peer.sending) {
    if (!peer.connection.serve()) return close(peer, peer.connection.close_reason());
    if (peer.connection.has_replies()) {
      peer.send_started = SteadyClock::read();
      arm_send(peer);
    }
  }
  arm_receive(peer);
}

void DataServer::close(Peer& peer, std::string_view reason, SessionEnd end) {
  if (peer.closing) return;
  peer.closing = true;
  peer.connection.leave_session(end);
  if (peer.connection.guesses())
    shared_.held.hold(peer.address, SteadyClock::read() + kGuessPenalty);
  some_closing_ = true;
  if (!reason.empty()) {
    if (const auto held = shared_.log_limiter.allow(SteadyClock::read()))
      log::warn("tcp_host connection_closed peer={} reason=\"{}\" suppressed={}",
                peer_name(peer.connection.socket()), reason, *held);
  }
  // Ends the ring's operations on it; forget_closed() waits for them.
  ::shutdown(peer.connection.socket(), SHUT_RDWR);
}

void DataServer::forget_closed() {
  size_t closing = 0;
  std::erase_if(peers_, [&](const std::unique_ptr<Peer>& peer) {
    if (!peer->closing) return false;
    if (peer->busy()) {
      ++closing;
      return false;
    }
    peer->connection.drop_replies();
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
  some_closing_ = closing > 0;
}

}  // namespace farpage::rdma::tcp
