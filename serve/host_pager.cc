#include "serve/host_pager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "base/unix_socket.h"
#include "serve/holder.h"
#include "serve/target_service.h"
#include "uffd/handover_server.h"
#include "uffd/other_process.h"

namespace farpage::serve {

using boost::asio::local::stream_protocol;

struct HostPager::Run {
  explicit Run(Socket connection) : socket(std::move(connection)) {}

  Socket socket;
  ucred peer{};
  std::string received;
  Fd listener;  // came, and is not used yet
  std::optional<uffd::HandoverServer> server;
  std::unique_ptr<TargetService> service;  // has begun
  uint64_t number = 0;                     // once it has begun
  RunRecord record;
  bool over = false;  // nothing more will be asked
};

namespace {

constexpr Milliseconds kAcceptPause{100};
constexpr Milliseconds kLastAnswers{1000};

// Bytes received; 0: the connection is closed; negative: there are none now.
ssize_t receive_some(int socket, std::string& text, Fd& descriptor) {
  std::array<std::byte, 4096> chunk;
  ReceivedBytes received = receive_with_descriptor(socket, chunk, MSG_DONTWAIT);
  if (received.count < 0) return errno == EAGAIN ? -1 : 0;
  if (received.descriptor.valid()) descriptor = std::move(received.descriptor);
  text.append(reinterpret_cast<const char*>(chunk.data()), static_cast<size_t>(received.count));
  return received.count;
}

// A socket that a killed pager has left behind. False: somebody listens there.
bool remove_left_behind(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return true;
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!S_ISSOCK(status.st_mode) || !address) return false;
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0 ||
      errno != ECONNREFUSED)
    return false;
  return ::unlink(path.c_str()) == 0;
}

Error no_program() {
  return {ErrorCode::kConflict, "no program has begun", 0};
}

TargetStatus status_of(const TargetReport& report) {
  const pager::PagerCounts& counts = report.counts;
  return {.program = report.program,
          .pid = report.pid,
          .transports = names_of_transports(counts),
          .limit_bytes = counts.budget_pages * kPageBytes,
          .resident_bytes = counts.resident_pages * kPageBytes,
          .remote_bytes = counts.away_pages * kPageBytes,
          .faults = counts.faults_remote + counts.faults_compressed,
          .fault_p99_us = static_cast<double>(report.latencies.fault.p99_ns) / 1000.0};
}

}  // namespace

Result<std::unique_ptr<HostPager>> HostPager::listen(boost::asio::io_context& control,
                                                     const std::string& path, pager::Engine& engine,
                                                     HostPagerOptions options,
                                                     const ServedState& state) {
  std::unique_ptr<HostPager> pager(new HostPager(control, path, engine, std::move(options), state));
  FARPAGE_TRY_VOID(pager->open());
  FARPAGE_TRY_VOID(pager->take_over());
  if (pager->is_open()) pager->accept();
  return pager;
}

Result<std::unique_ptr<HostPager>> HostPager::serve_one(boost::asio::io_context& control,
                                                        int connection, pager::Engine& engine,
                                                        HostPagerOptions options,
                                                        const ServedState& state) {
  std::unique_ptr<HostPager> pager(new HostPager(control, "", engine, std::move(options), state));
  FARPAGE_TRY_VOID(pager->take_over());
  const bool is_over = state.listener().has_value();
  if (pager->has_runs() || is_over) return pager;
  pager->awaits_one_ = true;
  pager->await_run(Socket(control, stream_protocol(), connection));
  return pager;
}

HostPager::HostPager(boost::asio::io_context& control, std::string path, pager::Engine& engine,
                     HostPagerOptions options, const ServedState& state)
    : control_(control),
      path_(std::move(path)),
      engine_(engine),
      options_(std::move(options)),
      state_(state),
      acceptor_(control) {}

HostPager::~HostPager() {
  close();
  for (const auto& run : runs_) {
    run->socket.close();
    run->service.reset();  // its callbacks lead here
  }
}

void HostPager::run_to_end() {
  while (is_open() || has_runs()) (void)control_.run_one();
  const Instant end = SteadyClock::read() + kLastAnswers;
  while (answers_ > 0 && SteadyClock::read() < end) (void)control_.run_one_for(kLastAnswers);
}

void HostPager::close() {
  if (!acceptor_.is_open()) return;
  (void)state_.put_listener(-1);
  acceptor_.close();
  (void)::unlink(path_.c_str());
}

// The mode is set before anybody can connect: a socket that does not listen refuses.
Status HostPager::open() {
  if (const std::optional<int> kept = state_.listener()) {
    if (*kept >= 0) acceptor_.assign(stream_protocol(), *kept);
    return {};
  }
  const std::optional<sockaddr_un> address = unix_address(path_);
  if (!address || path_.empty())
    return fail(ErrorCode::kInvalid,
                fmt::format("--socket: a path of 1 to {} characters", kMaxUnixPathBytes));
  if (!remove_left_behind(path_))
    return fail(ErrorCode::kConflict,
                fmt::format("--socket: {} is in use: is another farpage pager running?", path_));
  FARPAGE_TRY(listener,
              Fd::from_call(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket(AF_UNIX)"));
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail_errno(fmt::format("--socket: binding {}", path_));
  if (::chmod(path_.c_str(), 0600) != 0)
    return fail_errno(fmt::format("--socket: setting the permissions of {}", path_));
  if (::listen(listener.get(), SOMAXCONN) != 0) return fail_errno("listening on " + path_);
  FARPAGE_TRY_VOID(state_.put_listener(listener.get()));
  acceptor_.assign(stream_protocol(), listener.release());
  return {};
}

size_t HostPager::target_count() const {
  size_t count = 0;
  for (const auto& run : runs_) count += run->service->target_count();
  return count;
}

void HostPager::accept() {
  acceptor_.async_accept(while_here([this](boost::system::error_code error, Socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      await_run(std::move(socket));
      accept();
      return;
    }
    log::warn("pager: cannot_accept reason=\"{}\"", error.message());  // no descriptor is left
    const auto pause = std::make_shared<boost::asio::steady_timer>(control_, kAcceptPause);
    pause->async_wait(while_here([this, pause](boost::system::error_code) {
      if (acceptor_.is_open()) accept();
    }));
  }));
}

void HostPager::await_run(Socket socket) {
  const auto run = std::make_shared<Run>(std::move(socket));
  const Result<ucred> peer = peer_credentials(run->socket.native_handle());
  if (!peer) return;
  run->peer = *peer;
  next(run);
}

void HostPager::next(const std::shared_ptr<Run>& run) {
  const size_t end = run->received.find('\n');
  if (end != std::string::npos && !run->over) {
    const std::string line = run->received.substr(0, end);
    run->received.erase(0, end + 1);
    on_request(run, line);
    return;
  }
  run->socket.async_wait(Socket::wait_read,
                         while_here([this, run](boost::system::error_code error) {
                           if (!error) on_readable(run);
                         }));
}

// Before it is taken off the socket: a successor would wait for it in vain.
void HostPager::look_for_finish(Run& run) const {
  std::array<char, kMaxRequestBytes> text;
  const ssize_t got =
      ::recv(run.socket.native_handle(), text.data(), text.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got <= 0 || run.service == nullptr || !run.received.empty()) return;
  const std::string_view line(text.data(), static_cast<size_t>(got));
  const Result<PagerRequest> request = request_from_line(line.substr(0, line.find('\n')));
  const auto* finish = request ? std::get_if<FinishRun>(&*request) : nullptr;
  if (finish != nullptr) note_finish(run, *finish);
}

void HostPager::note_finish(Run& run, const FinishRun& finish) const {
  if (run.record.exit_status == finish.exit_status) return;
  run.record.exit_status = finish.exit_status;
  if (const Status noted = note(run); !noted) log::warn("pager: {}", noted.error().message());
}

void HostPager::on_readable(const std::shared_ptr<Run>& run) {
  look_for_finish(*run);
  const ssize_t got = receive_some(run->socket.native_handle(), run->received, run->listener);
  if (got == 0) {
    on_over(run);
  } else if (run->received.size() > kMaxRequestBytes) {
    log::warn("pager: request_too_long pid={}", run->peer.pid);
    boost::system::error_code ignored;
    run->socket.shutdown(Socket::shutdown_both, ignored);  // its record has the number
    on_over(run);
  } else {
    next(run);
  }
}

void HostPager::on_request(const std::shared_ptr<Run>& run, std::string_view line) {
  Result<PagerRequest> request = request_from_line(line);
  if (run->peer.uid != ::geteuid() && run->peer.uid != 0)
    request = fail(ErrorCode::kDenied, "--pager: it serves another user: start one for this user");
  // Kept, the other end of its own connection would keep that open.
  const bool begins = request && std::holds_alternative<BeginRun>(*request);
  if (!begins) run->listener.reset();
  if (!request) {
    answer(run, to_line(request.error()));
  } else if (const auto* program = std::get_if<BeginRun>(&*request)) {
    const Status begun = begin(run, *program);
    if (!begun)
      log::warn("pager: refused program={} reason=\"{}\"", printable(program->program),
                begun.error().message());
    answer(run, begun ? accepted_line() : to_line(begun.error()));
  } else if (const auto* finish = std::get_if<FinishRun>(&*request)) {
    if (run->service == nullptr) {
      answer(run, to_line(no_program()));
      return;
    }
    note_finish(*run, *finish);
    on_over(run);
    next(run);  // its end
  } else if (const auto* binary = std::get_if<Upgrade>(&*request)) {
    const Status prepared = prepare_upgrade(*binary);
    upgrades_ = static_cast<bool>(prepared);
    answer(run, prepared ? accepted_line() : to_line(prepared.error()));
  } else if (std::holds_alternative<AskReport>(*request)) {
    answer(run, run->service != nullptr ? to_line(report_of(run->service->live_reports(), *run, 0))
                                        : to_line(no_program()));
  } else {
    answer(run, to_line(status()));
  }
}

Status HostPager::begin(const std::shared_ptr<Run>& run, const BeginRun& begin) {
  if (run->service != nullptr) {
    const Fd again = std::move(run->listener);
    if (run->record.program == printable(begin.program) &&
        run->record.local_bytes == begin.local_bytes && run->record.fork == begin.fork)
      return {};  // asked twice: a dead engine has read it, too
    return fail(ErrorCode::kConflict, "a program has begun already");
  }
  if (!is_open()) return fail(ErrorCode::kUnavailable, "the pager is ending");
  FARPAGE_TRY_VOID(check_local(*run, begin.local_bytes));
  const RunRecord record{.program = printable(begin.program),
                         .socket = run->socket.native_handle(),
                         .listener = run->listener.get(),
                         .local_bytes = begin.local_bytes,
                         .fork = begin.fork,
                         .exit_status = {}};
  FARPAGE_TRY_VOID(serve(run, state_.next_number(), record, std::move(run->listener)));
  if (Status noted = note(*run); !noted) {
    runs_.remove(run);
    run->service.reset();
    run->server.reset();
    return noted;
  }
  awaits_one_ = false;
  if (is_of_host())
    log::info("pager: run_began program={} pid={} user={} local_bytes={}", run->record.program,
              run->peer.pid, run->peer.uid, begin.local_bytes);
  return {};
}

Status HostPager::serve(const std::shared_ptr<Run>& run, uint64_t number, const RunRecord& record,
                        Fd listener) {
  FARPAGE_TRY(server, uffd::HandoverServer::adopt(std::move(listener), run->peer.uid));
  pager::PagerOptions options = options_.pager;
  options.local_bytes = record.local_bytes;
  options.fork = record.fork;
  run->number = number;
  run->record = record;
  run->server.emplace(std::move(server));
  run->service = std::make_unique<TargetService>(control_, *run->server, engine_, options,
                                                 options_.scope, state_, number);
  run->service->when_empty([this, weak = std::weak_ptr(run)] {
    const std::shared_ptr<Run> ended = weak.lock();
    if (ended && ended->over) remove_later(ended);
  });
  run->service->check_local([this, weak = std::weak_ptr(run)](uint64_t local_bytes) -> Status {
    const std::shared_ptr<Run> changed = weak.lock();
    if (!changed) return {};
    FARPAGE_TRY_VOID(check_local(*changed, local_bytes));
    changed->record.local_bytes = local_bytes;
    return note(*changed);
  });
  runs_.push_back(run);
  return {};
}

Status HostPager::note(const Run& run) const {
  return state_.put(run.number, run.record);
}

namespace {

// May the userfaultfd of its child be one that is in no record?
bool awaits_child(const ServedRecord& parent, const std::map<uint64_t, ServedRecord>& targets) {
  return parent.may_fork && !targets.contains(parent.child);
}

// An orphan is the child of the one fork that is under way and has none yet.
FoundChildren children_of(const ServedRecord& parent,
                          const std::map<uint64_t, ServedRecord>& targets, const Orphans& orphans) {
  if (!parent.may_fork) return {};
  if (!awaits_child(parent, targets)) return {.adopted = 1};
  const auto candidates = std::ranges::count_if(
      targets, [&](const auto& entry) { return awaits_child(entry.second, targets); });
  // Its child has ended, before or after it was adopted.
  const bool has_ended = parent.child != 0 || (orphans.ended > 0 && candidates == 1);
  if (orphans.living.empty()) return {.adopted = has_ended ? size_t{1} : size_t{0}};
  if (orphans.living.size() == 1 && candidates == 1) return {.userfaultfd = orphans.living.front()};
  return {.unknown = true};
}

}  // namespace

// The userfaultfds of children that a dead pager has read of, and not noted.
Result<Orphans> HostPager::find_orphans() const {
  FARPAGE_TRY(known, state_.descriptors());
  Orphans found;
  for (const int descriptor : userfaultfds_but(known)) {
    if (!uffd::tells_of_forks(descriptor)) {
      ::close(descriptor);  // a child has what its parent has
    } else if (uffd::address_space_exists(descriptor)) {
      found.living.push_back(descriptor);
    } else {
      ::close(descriptor);
      ++found.ended;
    }
  }
  return found;
}

// A child that the dead engine had begun to serve, and whose record was not written yet.
Status HostPager::note_served_children(std::map<uint64_t, ServedRecord>& targets,
                                       Orphans& orphans) {
  std::map<uint64_t, ServedRecord> children;
  for (const auto& [number, parent] : targets) {
    const FoundChildren found = children_of(parent, targets, orphans);
    if (found.userfaultfd < 0 || parent.child == 0 || !engine_.can_resume(parent.child)) continue;
    const ServedRecord child = child_record(number, parent, parent.child_socket, found.userfaultfd);
    FARPAGE_TRY_VOID(state_.put(parent.child, child));
    children.emplace(parent.child, child);
  }
  if (!children.empty()) orphans.living.clear();
  targets.merge(children);
  return {};
}

void HostPager::note_taken_over(size_t processes) const {
  const Nanoseconds taken = SteadyClock::read() - state_.began();
  log::warn("pager: taken_over runs={} processes={} in_ms={}", runs_.size(), processes,
            taken.count() / 1'000'000);
}

// Targets of a run whose record is not there any more have ended.
Status HostPager::take_over() {
  FARPAGE_TRY(runs, state_.runs());
  FARPAGE_TRY(targets, state_.targets());
  FARPAGE_TRY(found, find_orphans());
  FARPAGE_TRY_VOID(note_served_children(targets, found));
  std::set<uint64_t> resumed;
  for (const auto& [target, of_target] : targets)
    if (runs.contains(of_target.run)) resumed.insert(target);
  engine_.end_succession(resumed);
  takes_over_ = !runs.empty();
  resuming_ = resumed.size();
  for (const auto& [number, record] : runs) {
    const auto run = std::make_shared<Run>(Socket(control_, stream_protocol(), record.socket));
    FARPAGE_TRY(peer, peer_credentials(record.socket));
    run->peer = peer;
    FARPAGE_TRY_VOID(serve(run, number, record, Fd(record.listener)));
    run->service->when_resumed([this, processes = resumed.size()] {
      if (--resuming_ == 0) note_taken_over(processes);
    });
    for (const auto& [target, of_target] : targets)
      if (of_target.run == number)
        run->service->resume(target, of_target, children_of(of_target, targets, found));
    if (record.exit_status) on_over(run);
    next(run);
  }
  if (!runs.empty() && resumed.empty()) note_taken_over(0);
  return {};
}

Status HostPager::prepare_upgrade(const Upgrade& upgrade) const {
  if (!state_.keeps()) return fail(ErrorCode::kUnsupported, "this pager has no holder");
  if (upgrade.state_version != pager::kStateVersion)
    return fail(ErrorCode::kUnsupported,
                "what this pager keeps of its programs is unknown to that build: start another "
                "pager, and let this one end with its programs");
  if (::access(upgrade.binary.c_str(), X_OK) != 0)
    return fail_errno("the binary " + upgrade.binary);
  return state_.put_upgrade(upgrade.binary);
}

Status HostPager::check_local(const Run& run, uint64_t local_bytes) const {
  if (const Status possible = pager::validate_local(local_bytes); !possible)
    return fail(possible.error().code, "--" + possible.error().context);
  uint64_t taken = 0;
  for (const auto& other : runs_)
    if (other.get() != &run) taken += other->service->local_bytes();
  const uint64_t left = options_.pool_bytes - std::min(options_.pool_bytes, taken);
  if (local_bytes <= left) return {};
  return fail(
      ErrorCode::kExhausted,
      fmt::format("--local {}: the programs of this pager may have {} together, and {} of "
                  "it is left; ask for less, or wait until another program ends",
                  format_size(local_bytes), format_size(options_.pool_bytes), format_size(left)));
}

void HostPager::answer(const std::shared_ptr<Run>& run, std::string line,
                       std::function<void()> sent) {
  const auto text = std::make_shared<const std::string>(std::move(line));
  ++answers_;
  boost::asio::async_write(run->socket, boost::asio::buffer(*text),
                           while_here([this, run, text, sent = std::move(sent)](
                                          boost::system::error_code error, size_t) {
                             --answers_;
                             if (sent) sent();
                             if (answers_ == 0 && upgrades_) ask_for_upgrade();
                             if (error) {
                               on_over(run);
                             } else if (!run->over) {
                               next(run);
                             }
                           }));
}

void HostPager::on_over(const std::shared_ptr<Run>& run) {
  run->over = true;
  awaits_one_ = false;
  if (run->service != nullptr && !run->service->has_targets()) remove_later(run);
}

// Now may be within a call of the service.
void HostPager::remove_later(const std::shared_ptr<Run>& run) {
  boost::asio::post(control_, while_here([this, run] { remove(run); }));
}

void HostPager::remove(const std::shared_ptr<Run>& run) {
  if (run->service == nullptr || run->service->has_targets()) return;
  if (is_of_host())
    log::info("pager: run_ended program={} pid={}", run->record.program, run->peer.pid);
  runs_.remove(run);
  if (!run->record.exit_status) {
    forget(*run);
    return;
  }
  const std::vector<TargetReport> reports = run->service->reports();
  if (options_.on_reports) options_.on_reports(reports, !takes_over_);
  // A dead engine may have sent a part of it.
  answer(run,
         (takes_over_ ? "\n" : "") + to_line(report_of(reports, *run, *run->record.exit_status)),
         [this, run] { forget(*run); });
}

// A successor has nothing more to do for it.
void HostPager::forget(Run& run) const {
  if (!is_of_host()) (void)state_.put_listener(-1);  // no other begins
  state_.erase_run(run.number);
  run.service.reset();
  run.server.reset();
}

RunReport HostPager::report_of(const std::vector<TargetReport>& reports, const Run& run,
                               int exit_status) const {
  RunReport report{.text = format_report(reports),
                   .json = json_report(reports, exit_status),
                   .memory = memory_use(reports, run.service->local_bytes(), 0)};
  if (takes_over_) {
    report.text =
        "farpage: the pager's engine was killed: counted since its last successor\n" + report.text;
    report.memory.far_bytes = std::numeric_limits<uint64_t>::max();  // unknown: no warning
  }
  return report;
}

PagerStatus HostPager::status() const {
  PagerStatus status{
      .engine = ::getpid(), .binary = own_binary(), .local_bytes = options_.pool_bytes, .runs = {}};
  for (const auto& run : runs_) {
    RunStatus& last = status.runs.emplace_back(RunStatus{.program = run->record.program,
                                                         .pid = run->peer.pid,
                                                         .user = run->peer.uid,
                                                         .local_bytes = run->service->local_bytes(),
                                                         .targets = {}});
    for (const TargetReport& report : run->service->live_reports())
      last.targets.push_back(status_of(report));
  }
  return status;
}

}  // namespace farpage::serve
