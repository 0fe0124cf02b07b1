// DataServer: one thread and one io_uring that serve many connections.
//
// Each connection has at most one receive and one send in the ring. All submissions of one round of
// completions take one system call. An idle thread spins with sched_yield for a while, then blocks
// in the kernel.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "rdma/held_peers.h"
#include "rdma/key_table.h"
#include "rdma/log_limiter.h"
#include "rdma/session_fences.h"
#include "rdma/tcp/connection.h"
#include "rdma/tcp/ring.h"
#include "rdma/tcp/tcp.h"

namespace farpage::rdma::tcp {

// What the servers of one host share. Threads: any.
struct SharedState {
  KeyTable keys;
  std::shared_ptr<SessionFences> fences;
  DataCounters counters;
  std::atomic<uint32_t> connections{0};
  LogLimiter log_limiter;
  HeldPeers held;  // by address
};

// Threads: create, start, stop and disconnect_holders from any; the rest belongs to its own thread.
class DataServer {
 public:
  // `listener` must stay open until stop(), `shared` must outlive the server.
  static Result<std::unique_ptr<DataServer>> create(const TcpHostOptions& options, int listener,
                                                    SharedState& shared);
  ~DataServer();

  // The listener must have been shut down. Returns when every connection is closed.
  void stop();
  // Soon closes every connection that holds memory whose key was withdrawn.
  void disconnect_holders();

 private:
  struct Peer;
  enum class Event : uint8_t { kAccept, kWake, kTick, kReceive, kSend, kHoldEnd };
  // What a completion belongs to; the ring carries the tag's address.
  struct Tag {
    Event event;
    Peer* peer = nullptr;
  };
  struct Peer {
    explicit Peer(Connection connection_) : connection(std::move(connection_)) {}
    const Tag receive_tag{Event::kReceive, this};
    const Tag send_tag{Event::kSend, this};
    const Tag hold_tag{Event::kHoldEnd, this};
    Connection connection;
    std::string address;  // of its host; kept because a socket that was reset has none
    Instant opened{0};
    Instant send_started{0};
    __kernel_timespec hold_time{};
    bool held = false;  // for hold_time; no receive until then
    bool receiving = false;
    bool sending = false;
    bool closing = false;
    bool busy() const { return receiving || sending || held; }
  };

  DataServer(const TcpHostOptions& options, int listener, SharedState& shared);

  void run();
  void wait_for_work();
  void handle(const io_uring_cqe& completion);

  void arm_accept();
  void arm_wake();
  void arm_tick();
  void arm_receive(Peer& peer);
  void arm_send(Peer& peer);
  void arm_hold(Peer& peer, Nanoseconds time);

  void on_accept(int result, bool more);
  void on_wake();
  void on_tick();
  void on_receive(Peer& peer, int result);
  void on_send(Peer& peer, int result);
  void on_hold_end(Peer& peer);

  // Serves received requests, then starts the next receive and send where possible.
  void go_on(Peer& peer);
  void close(Peer& peer, std::string_view reason, SessionEnd end = SessionEnd::kClosed);
  void forget_closed();
  void wake();

  // Constant after construction.
  const TcpHostOptions options_;
  const int listener_;
  SharedState& shared_;

  // Server thread only.
  Ring ring_;
  std::vector<std::unique_ptr<Peer>> peers_;
  const Tag accept_tag_{Event::kAccept};
  const Tag wake_tag_{Event::kWake};
  const Tag tick_tag_{Event::kTick};
  bool accept_armed_ = false;
  // With several threads each accepts once and queues again, behind the others: the kernel wakes
  // the first in the queue, which would get all connections.
  bool accept_multishot_;
  bool tick_armed_ = false;
  bool wake_armed_ = false;
  bool some_closing_ = false;
  uint64_t wake_value_ = 0;
  __kernel_timespec tick_interval_{1, 0};

  Fd wake_fd_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> disconnect_holders_{false};
  std::thread thread_;
};

}  // namespace farpage::rdma::tcp
