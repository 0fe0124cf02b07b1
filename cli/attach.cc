// farpage attach, farpage detach: far memory for a program that runs already.
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <functional>
#include <limits>
#include <optional>

#include "base/host.h"
#include "base/log.h"
#include "base/size.h"
#include "base/unix_socket.h"
#include "cli/attached_tree.h"
#include "cli/background.h"
#include "cli/output_file.h"
#include "cli/program_pager.h"
#include "cli/run_directory.h"
#include "cli/run_settings.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "inject/attachment.h"
#include "inject/target_checks.h"
#include "serve/run_report.h"
#include "serve/watch.h"
#include "uffd/handover_server.h"

namespace farpage::cli {
namespace {

struct AttachSettings : RunSettings {
  int64_t pid = 0;
  std::optional<Milliseconds> detach_after;
  bool allow_seccomp = false;
  bool children = false;
  std::string background;  // the file for messages; empty: in the foreground
};

struct DetachSettings {
  int64_t pid = 0;
};

// What ends an attachment from outside: a signal, or `farpage detach`.
class DetachRequests {
 public:
  // Call it before any thread starts: threads inherit the signal mask.
  static Result<Fd> block() {
    ::signal(SIGCHLD, SIG_DFL);
    return block_signals({SIGINT, SIGTERM, SIGHUP});
  }
  static Result<DetachRequests> listen(Fd signals, const std::string& path) {
    FARPAGE_TRY(server, uffd::HandoverServer::listen(path));
    return DetachRequests(std::move(signals), std::move(server));
  }

  int signals() const { return signals_.get(); }
  int listener() const { return server_.descriptor(); }
  // Has one arrived?
  bool take() {
    signalfd_siginfo info{};
    bool any = ::read(signals_.get(), &info, sizeof info) == sizeof info;
    Fd caller = server_.accept();
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
  DetachRequests(Fd signals, uffd::HandoverServer server)
      : signals_(std::move(signals)), server_(std::move(server)) {}
  Fd signals_;
  uffd::HandoverServer server_;
  Fd caller_;
};

const char* text_of(Parting parting) {
  switch (parting) {
    case Parting::kEnded:
      return "has ended";
    case Parting::kExecuted:
      return "has executed another program, which is not attached";
  }
  return "";
}

// Until the program and its children end, or somebody asks for their release.
class Stay {
 public:
  Stay(boost::asio::io_context& control, AttachedTree& tree, DetachRequests& requests,
       std::optional<Milliseconds> detach_after)
      : control_(control),
        tree_(tree),
        requests_(requests),
        signals_(control_, requests.signals()),
        listener_(control_, requests.listener()),
        limit_(control_) {
    await_requests(signals_);
    await_requests(listener_);
    if (!detach_after) return;
    limit_.expires_after(*detach_after);
    limit_.async_wait([this](boost::system::error_code error) {
      if (!error) detach();
    });
  }

  // kUnavailable: the pager has ended.
  Status until_end() {
    while (!over_ && !tree_.is_over() && !tree_.failure()) (void)control_.run_one();
    if (tree_.failure()) return tl::unexpected(*tree_.failure());
    return over_ ? std::move(*over_) : Status();
  }
  bool is_detached() const { return over_ && over_->has_value(); }

 private:
  void await_requests(serve::Watch& watch) {
    watch.wait([this, &watch] {
      if (requests_.take()) detach();
      if (!over_) await_requests(watch);
    });
  }

  void detach() {
    if (over_) return;
    Status detached = tree_.detach();
    requests_.answer(detached ? "" : detached.error().message());
    if (detached || detached.error().code == ErrorCode::kUnavailable)
      over_ = std::move(detached);
    else
      log::error("attach: not_detached reason=\"{}\"", detached.error().message());
  }

  boost::asio::io_context& control_;
  AttachedTree& tree_;
  DetachRequests& requests_;
  std::optional<Status> over_;
  serve::Watch signals_;
  serve::Watch listener_;
  boost::asio::steady_timer limit_;
};

Result<int> report(serve::PagerSession& session, const AttachSettings& settings) {
  FARPAGE_TRY(report, session.finish(kExitOk));
  if (settings.stats) fmt::print(stderr, "{}", report.text);
  FARPAGE_TRY_VOID(write_output("--stats-file", settings.stats_file, report.json));
  return kExitOk;
}

uint64_t most_locked_bytes(const pager::PagerOptions& options) {
  return options.local_bytes / 100 * pager::kPinPercent;
}

// A line for each of those that are left alone.
void attach_descendants(AttachedTree& tree, const pager::PagerOptions& options) {
  const AttachedTree::Descendants descendants = tree.attach_descendants(most_locked_bytes(options));
  for (const Error& why : descendants.left_alone)
    fmt::print(stderr, "farpage: left alone: {}\n", why.message());
  fmt::print(stderr, "farpage: attached to {} processes that it has started: {} of their memory\n",
             descendants.attached, format_size(descendants.far_bytes));
}

Result<int> attach_at(serve::PagerSession& session, const AttachSettings& settings,
                      const pager::PagerOptions& options, Fd signals,
                      const std::function<void()>& begun) {
  const auto pid = static_cast<pid_t>(settings.pid);
  FARPAGE_TRY(directory, RunDirectory::create());
  FARPAGE_TRY(server, uffd::HandoverServer::listen(directory.socket_path()));
  FARPAGE_TRY(requests, DetachRequests::listen(std::move(signals), directory.attached_path(pid)));
  FARPAGE_TRY_VOID(session.begin({.program = inject::process_name(pid),
                                  .local_bytes = options.local_bytes,
                                  .fork = pager::ForkMode::kShare},
                                 server.descriptor()));
  const SteadyClock clock;
  boost::asio::io_context control(1);
  std::optional<AttachedTree> tree;
  tree.emplace(control, clock, server.path(),
               inject::AttachOptions{.inject = {.allow_seccomp = settings.allow_seccomp},
                                     .least_bytes = settings.mmap_min_bytes});
  std::string name = inject::process_name(pid);
  bool has_parted = false;
  FARPAGE_TRY_VOID(tree->attach(pid, [&](Parting parting) {
    has_parted = true;
    fmt::print(stderr, "farpage: {} (pid {}) {}\n", name, pid, text_of(parting));
  }));
  const inject::Attachment& program = tree->program();
  name = program.name();
  fmt::print(stderr,
             "farpage: attached to {} (pid {}): {} of its memory may be remote, {} stay here; one "
             "thread of it stood for {:.1f} ms\n",
             name, pid, format_size(program.far_bytes()), format_size(options.local_bytes),
             static_cast<double>(program.stood().count()) / 1e6);
  if (settings.children) attach_descendants(*tree, options);
  begun();
  {
    Stay stay(control, *tree, requests, settings.detach_after);
    FARPAGE_TRY_VOID(stay.until_end());
    if (stay.is_detached() && has_parted)
      fmt::print(stderr, "farpage: what {} (pid {}) has started is detached\n", name, pid);
    else if (stay.is_detached())
      fmt::print(stderr, "farpage: {} (pid {}) is detached: all of its memory is here\n", name,
                 pid);
  }
  tree.reset();  // the pager sees the end of the connections
  return report(session, settings);
}

Result<int> attach(AttachSettings settings, const std::function<void()>& begun) {
  choose_sizes(settings, available_memory_bytes());
  if (settings.mmap_min_bytes < kPageBytes)
    return fail(ErrorCode::kInvalid, "--mmap-min: at least 4096");
  FARPAGE_TRY(options, pager_options(settings));
  options.fork = pager::ForkMode::kShare;
  FARPAGE_TRY_VOID(check_output("--stats-file", settings.stats_file));
  {
    FARPAGE_TRY_VOID(inject::check_kernel());
    FARPAGE_TRY(process, inject::ProcessFiles::open(static_cast<pid_t>(settings.pid)));
    FARPAGE_TRY_VOID(inject::check_target(process, settings.allow_seccomp));
    FARPAGE_TRY_VOID(inject::check_locked_memory(process, most_locked_bytes(options)));
  }
  raise_descriptor_limit();  // each process needs some
  FARPAGE_TRY(signals, DetachRequests::block());
  if (!settings.host_pager.empty()) {
    FARPAGE_TRY(session, serve::PagerSession::connect(settings.host_pager));
    return attach_at(session, settings, options, std::move(signals), begun);
  }
  FARPAGE_TRY(pager, ProgramPager::start(settings, options));
  Result<int> ended = attach_at(pager.session(), settings, options, std::move(signals), begun);
  const int status = pager.wait();
  if (!ended || status == kExitOk) return ended;
  return status;
}

Result<int> detach(const DetachSettings& settings) {
  const auto pid = static_cast<pid_t>(settings.pid);
  FARPAGE_TRY(path, find_attached(pid));
  FARPAGE_TRY(socket, connect_to_path(path, SOCK_SEQPACKET));
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
       "Stays in the foreground (but see --background) until the program and its children end, or",
       "until Ctrl-C or farpage detach brings everything back. Private anonymous memory is taken "
       "over: the heap, "
       "what the program's",
       "allocator maps. The program is neither restarted nor stopped; one of "
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
      .flag("--children", settings->children,
            "Also the processes that it has started and that run now, with the same --local for "
            "all")
      .text(
          "--background", settings->background,
          "Return when the program is attached, and go on in the background, with messages in this "
          "file")
      .flag("--allow-seccomp", settings->allow_seccomp,
            "Also where the program restricts its system calls: its agent stays traced, and the "
            "death of this process may be the end of the program")
      .flag("--stats", settings->stats, "Print what the pager did, at the end, on standard error")
      .text("--stats-file", settings->stats_file, "Write the same as JSON to this file");
  subcommand.on_run(invocation, [settings] {
    return run_in_background(settings->background, [&](const std::function<void()>& begun) {
      return attach(*settings, begun);
    });
  });
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
