#include "library/hosted_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/log.h"
#include "base/unix_socket.h"
#include "library/prefault.h"
#include "library/signals.h"
#include "uffd/handover_server.h"
#include "uffd/resize_call.h"

namespace farpage::library {

namespace handover = uffd::handover;
using handover::RequestKind;

namespace {

constexpr timeval kReplyTimeout{.tv_sec = 60, .tv_usec = 0};

tl::unexpected<Error> pager_has_ended() {
  return tl::unexpected(
      Error{ErrorCode::kUnavailable, "the pager of this host has closed the connection", 0});
}

tl::unexpected<Error> in_a_child() {
  return fail(ErrorCode::kConflict, "the region is that of the parent of this process");
}

// The pager's messages name the options of its own command line.
Error in_words_of_the_library(Error error) {
  for (const auto& [theirs, ours] :
       {std::pair{"--pager", "pager"}, std::pair{"--local", "local_bytes"}}) {
    const size_t at = error.context.find(theirs);
    if (at != std::string::npos) error.context.replace(at, std::string_view(theirs).size(), ours);
  }
  return error;
}

template <typename Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Bytes received; 0: the other end is closed.
template <typename Value>
ssize_t receive(const Fd& socket, Value& value) {
  ssize_t got = 0;
  do {
    got = ::recv(socket.get(), &value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

Status receive_welcome(const Fd& socket) {
  handover::Welcome welcome;
  const ssize_t got = receive(socket, welcome);
  if (got < 0 && errno != ECONNRESET) return fail_errno("the pager's answer to the hand-over");
  if (got <= 0) return pager_has_ended();
  if (got != sizeof welcome || welcome.magic != handover::kMagic ||
      welcome.version != handover::kVersion)
    return fail(ErrorCode::kUnsupported,
                "pager: it is of another version: use libfarpage and farpage of one build");
  welcome.reason[sizeof welcome.reason - 1] = '\0';
  if (welcome.status != 0) return fail(ErrorCode::kUnavailable, welcome.reason);
  return {};
}

uint64_t number_in(const nlohmann::json& object, const char* path) {
  return object.value(nlohmann::json::json_pointer(path), uint64_t{0});
}

uint64_t ns_in(const nlohmann::json& object, const char* path) {
  return static_cast<uint64_t>(object.value(nlohmann::json::json_pointer(path), 0.0) * 1000.0);
}

RegionStats stats_of(const nlohmann::json& target) {
  RegionStats stats;
  stats.resident_bytes = number_in(target, "/resident_bytes");
  stats.local_bytes = number_in(target, "/local_bytes");
  stats.away_bytes = number_in(target, "/remote_bytes");
  stats.leased_slabs = number_in(target, "/leased_slabs");
  stats.faults_remote = number_in(target, "/faults/remote");
  stats.faults_compressed = number_in(target, "/faults/compressed");
  stats.faults_zero = number_in(target, "/faults/zero");
  stats.zeros_ahead = number_in(target, "/zero_pages_ahead");
  stats.faults_write = number_in(target, "/faults/write");
  stats.faults_failed = number_in(target, "/faults/failed");
  stats.prefetched = number_in(target, "/prefetched_pages");
  stats.evicted_written = number_in(target, "/evictions/written");
  stats.evicted_clean = number_in(target, "/evictions/clean");
  stats.evicted_zero = number_in(target, "/evictions/zero");
  stats.read_bytes = number_in(target, "/read_bytes");
  stats.written_bytes = number_in(target, "/write_bytes");
  stats.compressed_stored = number_in(target, "/compressed_stored");
  stats.compressed_hits = number_in(target, "/compressed_hits");
  stats.compressed_dropped = number_in(target, "/compressed_dropped");
  stats.compressed_bytes = number_in(target, "/compressed_bytes");
  stats.retries = number_in(target, "/retries");
  stats.replicas_lost = number_in(target, "/replicas_lost");
  stats.fault_p50_ns = ns_in(target, "/latency/remote_fault/p50_us");
  stats.fault_p99_ns = ns_in(target, "/latency/remote_fault/p99_us");
  stats.transports = target.value("transports", "");
  return stats;
}

}  // namespace

// Those of this process, for the children that it forks.
class HostedMemory::Registry {
 public:
  static Registry& instance() {
    static Registry* const registry = new Registry;  // lives as long as the process
    return *registry;
  }
  void add(HostedMemory& memory) {
    const std::lock_guard lock(mutex_);
    all_.insert(&memory);
  }
  void remove(HostedMemory& memory) {
    const std::lock_guard lock(mutex_);
    all_.erase(&memory);
  }

 private:
  Registry() {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().abandon_all(); });
  }
  void abandon_all() {
    for (HostedMemory* memory : all_) memory->abandon();
    mutex_.unlock();
  }

  std::mutex mutex_;  // held across a fork
  std::set<HostedMemory*> all_;
};

Result<std::unique_ptr<HostedMemory>> HostedMemory::create(uint64_t pages,
                                                           const HostedOptions& options) {
  Result<serve::PagerSession> session = serve::PagerSession::connect(options.pager);
  if (!session) return tl::unexpected(in_words_of_the_library(session.error()));
  FARPAGE_TRY(registered, uffd::register_memory(pages, uffd::eventless_features()));
  std::unique_ptr<HostedMemory> memory(
      new HostedMemory(std::move(*session), std::move(registered), options.local_bytes));
  if (Status begun = memory->begin(options); !begun)
    return tl::unexpected(in_words_of_the_library(std::move(begun).error()));
  return memory;
}

Status HostedMemory::begin(const HostedOptions& options) {
  Registry::instance().add(*this);
  FARPAGE_TRY(listener, uffd::HandoverServer::listen());
  handover_bytes_ = sizeof handover_;
  if (::getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&handover_),
                    &handover_bytes_) != 0)
    return fail_errno("getsockname");
  {
    const MutexLock lock(session_mutex_);
    FARPAGE_TRY_VOID(session_->begin({.program = options.name,
                                      .local_bytes = options.local_bytes,
                                      .fork = pager::ForkMode::kRefuse},
                                     listener.descriptor()));
  }
  Status handed = hand_over(options);
  // An engine that was killed may have had the first one.
  if (!handed && handed.error().code == ErrorCode::kUnavailable) handed = hand_over(options);
  FARPAGE_TRY_VOID(handed);
  return start();
}

Status HostedMemory::start() {
  try {
    agent_ = std::thread([commands = commands_, userfaultfd = userfaultfd_.fd()] {
      ::prctl(PR_SET_NAME, handover::kAgentName);
      commands->prepare();
      commands->run(userfaultfd);
      commands->release();
    });
  } catch (const std::system_error& problem) {
    return fail(ErrorCode::kExhausted,
                std::string("a thread for the pager's commands: ") + problem.what());
  }
  return {};
}

Result<Fd> HostedMemory::connect() const {
  FARPAGE_TRY(socket, Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                                    "socket(AF_UNIX)"));
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kReplyTimeout, sizeof kReplyTimeout);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&handover_), handover_bytes_) != 0)
    return fail_errno("connecting to the pager");
  return socket;
}

Status HostedMemory::hand_over(const HostedOptions& options) {
  commands_->release();  // of a former attempt
  const long made = commands_->create_ring();
  if (made < 0) return fail(ErrorCode::kIo, "creating the ring for the pager's commands");
  const Fd ring(static_cast<int>(made));
  // Made before the connection, so that an exec closes it first: it must not outlive that.
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
    return fail_errno("socketpair");
  lifeline_ = Fd(pair[0]);
  const Fd pagers_end(pair[1]);
  FARPAGE_TRY(control, connect());
  handover::Hello hello;
  hello.window_address = reinterpret_cast<uint64_t>(window_.data());
  hello.window_bytes = window_.size();
  hello.features = userfaultfd_.features();
  hello.ring_bytes = sizeof(handover::AgentRing);
  hello.pid = ::getpid();
  options.name.copy(hello.program, sizeof hello.program - 1);
  if (send_with_descriptors(control.get(), library::bytes_of(hello),
                            std::array{userfaultfd_.fd(), ring.get()}) < 0)
    return pager_has_ended();
  FARPAGE_TRY_VOID(receive_welcome(control));
  control_ = std::move(control);
  return send_lifeline(pagers_end);
}

// As the shim's agent does (shim/agent.cc): the kernel kills this process when the pager is gone.
Status HostedMemory::send_lifeline(const Fd& pagers_end) {
  handover::Request request;
  request.kind = RequestKind::kLifeline;
  if (send_with_descriptor(control_.get(), library::bytes_of(request), pagers_end.get()) < 0)
    return pager_has_ended();
  const int own = lifeline_.get();
  ::fcntl(own, F_SETSIG, SIGKILL);
  ::fcntl(own, F_SETOWN, ::getpid());
  ::fcntl(own, F_SETFL, ::fcntl(own, F_GETFL) | O_ASYNC);
  return {};
}

HostedMemory::~HostedMemory() {
  if (abandoned_.load(std::memory_order_relaxed)) {
    if (agent_.joinable()) agent_.detach();  // it is the parent's
    return;
  }
  Registry::instance().remove(*this);
  if (lifeline_.valid())
    ::fcntl(lifeline_.get(), F_SETFL, ::fcntl(lifeline_.get(), F_GETFL) & ~O_ASYNC);
  const bool left = !control_.valid() || leave();
  if (!agent_.joinable()) {
    commands_->release();
  } else if (left) {
    commands_->end();
    agent_.join();
  } else {
    log::error("library: the pager has not left a region in time: its addresses stay mapped");
    agent_.detach();
    (void)new (std::nothrow) uffd::Userfaultfd(std::move(userfaultfd_));
    (void)new (std::nothrow) Mapping(std::move(window_));
  }
}

bool HostedMemory::leave() {
  handover::Request request;
  request.kind = RequestKind::kLeave;
  if (send_with_descriptor(control_.get(), library::bytes_of(request), -1) < 0) return false;
  handover::Reply reply;
  while (true) {
    const ssize_t got = receive(control_, reply);
    if (got == 0) return true;
    if (got < 0) return errno == ECONNRESET;  // the request is on the socket that is closed
    // A successor has answered an earlier request again.
  }
}

// In a forked child, in which no other thread is.
void HostedMemory::abandon() {
  abandoned_.store(true, std::memory_order_relaxed);
  lifeline_.reset();
  control_.reset();
  userfaultfd_.close();
  session_.reset();
}

Result<int> HostedMemory::request(RequestKind kind, uffd::PageRun run) const {
  if (abandoned_.load(std::memory_order_relaxed)) return in_a_child();
  const SignalsBlocked signals;  // a handler that makes a request would wait for this thread
  const MutexLock lock(control_mutex_);
  const std::span<std::byte> range = bytes_of(run);
  const handover::Request request{.kind = kind,
                                  .address = reinterpret_cast<uint64_t>(range.data()),
                                  .bytes = range.size(),
                                  .number = ++last_number_};
  if (send_with_descriptor(control_.get(), library::bytes_of(request), -1) < 0)
    return pager_has_ended();
  handover::Reply reply;
  do {
    const ssize_t got = receive(control_, reply);
    if (got != sizeof reply) {
      const int problem = got < 0 ? errno : 0;
      ::shutdown(control_.get(), SHUT_RDWR);  // what was asked must not be carried out later
      return problem == EAGAIN
                 ? fail(ErrorCode::kTimedOut, "the pager of this host does not answer")
                 : pager_has_ended();
    }
  } while (reply.number < request.number);
  return reply.status;
}

Status HostedMemory::prefault(uffd::PageRun run, bool writable) const {
  return library::prefault(bytes_of(run), writable);
}

// Hints: what the pager answers does not matter.
void HostedMemory::hint_willneed(uffd::PageRun run) const {
  (void)request(RequestKind::kWillNeedHint, run);
}

void HostedMemory::hint_cold(uffd::PageRun run) const {
  (void)request(RequestKind::kColdHint, run);
}

void HostedMemory::advise(uffd::PageRun run, pager::AccessPattern pattern) const {
  switch (pattern) {
    case pager::AccessPattern::kNormal:
      (void)request(RequestKind::kNormalAccess, run);
      return;
    case pager::AccessPattern::kSequential:
      (void)request(RequestKind::kSequentialAccess, run);
      return;
    case pager::AccessPattern::kRandom:
      (void)request(RequestKind::kRandomAccess, run);
      return;
  }
}

Result<bool> HostedMemory::try_pin(uffd::PageRun run) const {
  FARPAGE_TRY(status, request(RequestKind::kPin, run));
  return status == 0;
}

void HostedMemory::unpin(uffd::PageRun run) const {
  if (run.pages > 0) (void)request(RequestKind::kUnpin, run);
}

Status HostedMemory::forget(uffd::PageRun run) const {
  FARPAGE_TRY(status, request(RequestKind::kDiscard, run));
  if (status != 0) return fail(ErrorCode::kIo, "the pager has not discarded the range");
  return {};
}

Status HostedMemory::set_local(uint64_t local_bytes) const {
  if (abandoned_.load(std::memory_order_relaxed)) return in_a_child();
  const auto resize = [&]() -> Result<uffd::ResizedProcesses> {
    FARPAGE_TRY(socket, connect());
    return uffd::resize(socket, local_bytes);
  };
  Result<uffd::ResizedProcesses> changed = resize();
  // An engine that was killed may have had the question.
  if (!changed && changed.error().code == ErrorCode::kUnavailable) changed = resize();
  if (!changed) return tl::unexpected(in_words_of_the_library(changed.error()));
  local_bytes_.store(local_bytes, std::memory_order_relaxed);
  return {};
}

RegionStats HostedMemory::stats() const {
  RegionStats unknown;
  unknown.local_bytes = local_bytes_.load(std::memory_order_relaxed);
  if (abandoned_.load(std::memory_order_relaxed)) return unknown;
  const MutexLock lock(session_mutex_);
  const Result<serve::RunReport> report = session_->report();
  if (!report) return unknown;
  try {
    const auto json = nlohmann::json::parse(report->json);
    return json.at("targets").empty() ? unknown : stats_of(json.at("targets").at(0));
  } catch (const nlohmann::json::exception& problem) {
    log::warn("library: the pager's report: {}", problem.what());
    return unknown;
  }
}

}  // namespace farpage::library
