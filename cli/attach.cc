// farpage attach, farpage detach: far memory for a program that runs already.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <limits>
#include <optional>

#include "base/log.h"
#include "base/size.h"
#include "base/timespec.h"
#include "base/unix_socket.h"
#include "cli/engine_parts.h"
#include "cli/program_pager.h"
#include "cli/run_directory.h"
#include "cli/run_settings.h"
#include "cli/subcommand.h"
#include "inject/attachment.h"
#include "inject/target_checks.h"
#include "serve/run_report.h"
#include "uffd/handover_server.h"

namespace farpage::cli {
namespace {

struct AttachSettings : RunSettings {
  int64_t pid = 0;
  std::optional<Milliseconds> detach_after;
  bool allow_seccomp = false;
};

struct DetachSettings {
  int64_t pid = 0;
};

// What ends an attachment from outside: a signal, or `farpage detach`.
class DetachRequests {
 public:
  // Call it before any thread starts: threads inherit the signal mask.
  static Result<Fd> block_signals() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, number);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    ::signal(SIGCHLD, SIG_DFL);
    return Fd::from_call(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
  }
  static Result<DetachRequests> listen(Fd signals, const std::string& path) {
    const std::optional<sockaddr_un> address = unix_address(path);
    if (!address) return fail(ErrorCode::kInvalid, "the path of a socket is too long: " + path);
    FARPAGE_TRY(listener,
                Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                              "socket(AF_UNIX)"));
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
      return fail_errno("binding " + path);
    if (::listen(listener.get(), SOMAXCONN) != 0) return fail_errno("listening on " + path);
    return DetachRequests(std::move(signals), std::move(listener));
  }

  int signals() const { return signals_.get(); }
  int listener() const { return listener_.get(); }
  // Has one arrived?
  bool take() {
    signalfd_siginfo info{};
    bool any = ::read(signals_.get(), &info, sizeof info) == sizeof info;
    Fd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.valid()) {
      caller_ = std::move(caller);
      any = true;
    }
    return any;
  }
  // To `farpage detach`: "" is success.
  void answer(const std::string& problem) {
    if (caller_.valid())
      (void)::send(caller_.get(), problem.c_str(), problem.size() + 1, MSG_NOSIGNAL);
    caller_.reset();
  }

 private:
  DetachRequests(Fd signals, Fd listener)
      : signals_(std::move(signals)), listener_(std::move(listener)) {}
  Fd signals_;
  Fd listener_;
  Fd caller_;
};

enum class Ending : uint8_t { kProgramEnded, kExecuted, kDetached };

const char* text_of(Ending ending) {
  switch (ending) {
    case Ending::kProgramEnded:
      return "has ended";
    case Ending::kExecuted:
      return "has executed another program, which is not attached";
    case Ending::kDetached:
      return "is detached: all of its memory is here";
  }
  return "";
}

constexpr int kEndsSoonMs = 1000;
constexpr Seconds kRetry{1};

// nullopt: it is attached still.
std::optional<Ending> ending_of(const inject::Attachment& attachment) {
  if (uffd::process_alive(attachment.agent())) return std::nullopt;
  // The threads of a program that ends do so one after the other.
  pollfd process{attachment.process().get(), POLLIN, 0};
  return ::poll(&process, 1, kEndsSoonMs) > 0 ? Ending::kProgramEnded : Ending::kExecuted;
}

// Until the program ends or somebody asks for its release.
Result<Ending> stay(inject::Attachment& attachment, DetachRequests& requests,
                    std::optional<Milliseconds> detach_after) {
  const SteadyClock clock;
  const Instant end = clock.now() + detach_after.value_or(Milliseconds(0));
  while (true) {
    Result<Nanoseconds> next = attachment.tend();
    std::array<pollfd, 5> fds{{{attachment.process().get(), POLLIN, 0},
                               {attachment.agent().get(), POLLIN, 0},
                               {requests.signals(), POLLIN, 0},
                               {requests.listener(), POLLIN, 0},
                               {attachment.changes(), POLLIN, 0}}};
    if (!next) {
      // A program that ends closes its memory first.
      (void)::poll(&fds[1], 1, kEndsSoonMs);
      if (const auto ending = ending_of(attachment)) return *ending;
      if (next.error().code == ErrorCode::kUnavailable)
        return tl::unexpected(std::move(next.error()));
      log::error("attach: not_taken_in reason=\"{}\"", next.error().message());
      next = Nanoseconds(kRetry);
    }
    Nanoseconds wait = *next;
    if (detach_after)
      wait = std::min(wait, std::max<Nanoseconds>(end - clock.now(), Nanoseconds(0)));
    const timespec timeout = timespec_of(wait);
    if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) < 0 && errno != EINTR)
      return fail_errno("ppoll");
    if (const auto ending = ending_of(attachment)) return *ending;
    const bool is_over = detach_after && clock.now() >= end;
    if (!is_over && !requests.take()) continue;
    const Status detached = attachment.detach();
    if (const auto ending = detached ? std::nullopt : ending_of(attachment)) return *ending;
    requests.answer(detached ? "" : detached.error().message());
    if (detached) return Ending::kDetached;
    if (detached.error().code == ErrorCode::kUnavailable) return tl::unexpected(detached.error());
    log::error("attach: not_detached reason=\"{}\"", detached.error().message());
    detach_after.reset();
  }
}

Result<int> report(serve::PagerSession& session, const AttachSettings& settings) {
  FARPAGE_TRY(report, session.finish(kExitOk));
  if (settings.stats) fmt::print(stderr, "{}", report.text);
  if (!settings.stats_file.empty()) {
    std::ofstream file(settings.stats_file);
    file << report.json;
    file.close();
    if (!file) return fail(ErrorCode::kIo, "--stats-file: cannot write " + settings.stats_file);
  }
  return kExitOk;
}

Result<int> attach_at(serve::PagerSession& session, const AttachSettings& settings,
                      const pager::PagerOptions& options, Fd signals) {
  const auto pid = static_cast<pid_t>(settings.pid);
  FARPAGE_TRY(directory, RunDirectory::create());
  FARPAGE_TRY(server, uffd::HandoverServer::listen(directory.socket_path()));
  FARPAGE_TRY(requests, DetachRequests::listen(std::move(signals), directory.attached_path(pid)));
  FARPAGE_TRY_VOID(session.begin({.program = inject::process_name(pid),
                                  .local_bytes = options.local_bytes,
                                  .fork = pager::ForkMode::kShare},
                                 server.descriptor()));
  const SteadyClock clock;
  FARPAGE_TRY(attachment,
              inject::Attachment::begin(pid, server.path(),
                                        {.inject = {.allow_seccomp = settings.allow_seccomp},
                                         .least_bytes = settings.mmap_min_bytes},
                                        clock));
  const std::string name = attachment->name();
  fmt::print(stderr,
             "farpage: attached to {} (pid {}): {} of its memory may be remote, {} stay here; one "
             "thread of it stood for {:.1f} ms\n",
             name, pid, format_size(attachment->far_bytes()), format_size(options.local_bytes),
             static_cast<double>(attachment->stood().count()) / 1e6);
  FARPAGE_TRY(ending, stay(*attachment, requests, settings.detach_after));
  fmt::print(stderr, "farpage: {} (pid {}) {}\n", name, pid, text_of(ending));
  attachment.reset();  // the pager sees the end of the connection
  return report(session, settings);
}

Result<int> attach(AttachSettings settings) {
  choose_sizes(settings, available_memory_bytes());
  if (settings.mmap_min_bytes < kPageBytes)
    return fail(ErrorCode::kInvalid, "--mmap-min: at least 4096");
  FARPAGE_TRY(options, pager_options(settings));
  options.fork = pager::ForkMode::kShare;
  {
    FARPAGE_TRY_VOID(inject::check_kernel());
    FARPAGE_TRY(process, inject::ProcessFiles::open(static_cast<pid_t>(settings.pid)));
    FARPAGE_TRY_VOID(inject::check_target(process, settings.allow_seccomp));
    FARPAGE_TRY_VOID(
        inject::check_locked_memory(process, options.local_bytes / 100 * pager::kPinPercent));
  }
  FARPAGE_TRY(signals, DetachRequests::block_signals());
  if (!settings.host_pager.empty()) {
    FARPAGE_TRY(session, serve::PagerSession::connect(settings.host_pager));
    return attach_at(session, settings, options, std::move(signals));
  }
  std::optional<EmbeddedCluster> cluster;
  if (settings.coordinator.empty()) {
    FARPAGE_TRY(started, start_cluster(settings));
    cluster.emplace(std::move(started));
    settings.coordinator = cluster->coordinator_url();
  }
  FARPAGE_TRY(pager, ProgramPager::start(settings, options));
  Result<int> ended = attach_at(pager.session(), settings, options, std::move(signals));
  const int status = pager.wait();
  if (!ended || status == kExitOk) return ended;
  return status;
}

Result<int> detach(const DetachSettings& settings) {
  const auto pid = static_cast<pid_t>(settings.pid);
  FARPAGE_TRY(path, find_attached(pid));
  const std::optional<sockaddr_un> address = unix_address(path);
  FARPAGE_TRY(socket, Fd::from_call(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                                    "socket(AF_UNIX)"));
  if (!address ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return fail_errno("connecting to farpage attach at " + path);
  std::array<char, 1024> problem{};
  const ssize_t got = ::recv(socket.get(), problem.data(), problem.size() - 1, 0);
  if (got <= 0) return fail(ErrorCode::kUnavailable, "farpage attach ended before it answered");
  if (problem[0] != '\0')
    return fail(ErrorCode::kUnavailable, std::string("it is still attached: ") + problem.data());
  fmt::print("process {} is detached\n", pid);
  return kExitOk;
}

}  // namespace

void add_attach(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<AttachSettings>();
  Subcommand subcommand(
      root, "attach", "Move memory of a program that runs already to memory nodes",
      {"farpage attach 4711 --local 512M --coordinator http://10.0.0.1:7070",
       "farpage attach $(pgrep -o redis) --local 1G --stats", "farpage detach 4711", "",
       "Stays in the foreground until the program ends, or until Ctrl-C or farpage detach brings",
       "everything back. Private anonymous memory is taken over: the heap, what the program's",
       "allocator maps, stacks of threads. The program is neither restarted nor stopped; one of "
       "its",
       "threads stands for some milliseconds. Needs Linux 6.9 and root, or the rights to trace it.",
       "If this command is killed, so is the program: what is remote could not come back (with",
       "--pager, if the pager is)."});
  subcommand.positional("PID", settings->pid, 1, std::numeric_limits<int32_t>::max(),
                        "Process id of the program");
  add_options(subcommand, static_cast<EngineSettings&>(*settings));
  subcommand
      .text("--pager", settings->host_pager,
            "Socket of the farpage pager of this host, which serves the program in place of a "
            "pager of its own",
            Subcommand::Scope::kShared)
      .size("--mmap-min", settings->mmap_min_bytes, "Smaller mappings stay local")
      .duration("--detach-after", settings->detach_after, "Detach after this time")
      .flag("--allow-seccomp", settings->allow_seccomp,
            "Also where the program restricts its system calls: its agent stays traced, and the "
            "death of this process may be the end of the program")
      .flag("--stats", settings->stats, "Print what the pager did, at the end, on standard error")
      .text("--stats-file", settings->stats_file, "Write the same as JSON to this file");
  subcommand.on_run(invocation, [settings] { return attach(*settings); });
}

void add_detach(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<DetachSettings>();
  Subcommand(root, "detach", "Bring the memory of an attached program back",
             {"farpage detach 4711", "",
              "Returns when all of it is here and nothing of farpage is "
              "left in the program."})
      .positional("PID", settings->pid, 1, std::numeric_limits<int32_t>::max(),
                  "Process id of the program")
      .on_run(invocation, [settings] { return detach(*settings); });
}

}  // namespace farpage::cli
