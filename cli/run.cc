// farpage run: runs a program with far memory. Constructs and connects its parts.
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/cpus.h"
#include "base/log.h"
#include "cli/allocator.h"
#include "cli/attached_tree.h"
#include "cli/child.h"
#include "cli/elf_check.h"
#include "cli/flush_cost.h"
#include "cli/output_file.h"
#include "cli/program_pager.h"
#include "cli/run_directory.h"
#include "cli/run_settings.h"
#include "cli/sanitizer.h"
#include "cli/signals.h"
#include "cli/subcommand.h"
#include "inject/attachment.h"
#include "inject/process_files.h"
#include "inject/target_checks.h"
#include "serve/pager_session.h"
#include "serve/run_report.h"
#include "serve/watch.h"
#include "uffd/probe.h"

namespace farpage::cli {
namespace {

namespace handover = uffd::handover;

// The shim is in the directory of the binary or in that of an installation.
Result<std::string> find_shim() {
  std::error_code problem;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (problem) return fail(ErrorCode::kNotFound, "cannot read /proc/self/exe");
  const std::filesystem::path directory = self.parent_path();
  for (const char* place : {"libfarpage_preload.so", "../lib/farpage/libfarpage_preload.so"}) {
    const std::filesystem::path candidate = directory / place;
    if (std::filesystem::exists(candidate)) return std::filesystem::canonical(candidate).string();
  }
  return fail(ErrorCode::kNotFound,
              "libfarpage_preload.so is not beside " + self.string() + ": build or install both");
}

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// More CPUs, with more programs and threads on them, were not measured.
constexpr size_t kMostCpusToSpareFlushes = 2;

bool flushes_stop_other_cpus() {
  if (allowed_cpus().size() > kMostCpusToSpareFlushes) return false;
  const Result<std::optional<FlushCost>> cost = measure_flush_cost();
  return cost && *cost && (*cost)->stops_other_cpus();
}

struct Target {
  std::string file;
  CheckedProgram program;
};

Result<Target> find_target(const std::string& command) {
  FARPAGE_TRY(file, find_program(command));
  FARPAGE_TRY(program, check_program(file));
  for (const std::string& library : preload_entries(variable("LD_PRELOAD", "")))
    if (!sanitizer_of_library(library).empty()) {
      program.obstacle = fmt::format("runs with {}, which LD_PRELOAD names", library);
      program.has_sanitizer = true;
    }
  return Target{std::move(file), std::move(program)};
}

Result<std::string> find_allocator(const std::string& choice) {
  FARPAGE_TRY(library, allocator_library(choice, LibraryPlaces::of_this_host()));
  if (library.empty() && choice == kAutomaticAllocator)
    log::warn(
        "run: no_allocator: only large anonymous mappings of the program become far memory; "
        "apt-get install {}",
        allocator_package());
  return library;
}

struct Preloads {
  std::string shim;
  std::string allocator;
};

// Forwards signals to the program, except those of a terminal, which the kernel sends to the whole
// process group.
class SignalRelay {
 public:
  // Call it before any thread starts: threads inherit the signal mask.
  static Result<SignalRelay> create() {
    ::signal(SIGCHLD, SIG_DFL);  // where it was ignored, no end of a child could be waited for
    FARPAGE_TRY(fd, block_signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}));
    return SignalRelay(std::move(fd));
  }

  int descriptor() const { return fd_.get(); }  // readable when there is one to relay
  // The number of one that has arrived already, of a terminal too: call it while there is no child.
  std::optional<int> early() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }
  // To a Child, or an AttachedTree.
  template <typename Receiver>
  void relay(const Receiver& receiver) const {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_code != SI_KERNEL) receiver.signal(static_cast<int>(info.ssi_signo));
  }

 private:
  explicit SignalRelay(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// What is needed to start the program, whoever pages for it.
struct Launch {
  Target target;
  std::optional<Preloads> preloads;  // none: an agent is injected
  pager::PagerOptions options;
  SignalRelay signals;
};

ChildOptions target_options(const RunSettings& settings, const Launch& launch,
                            const std::string& socket) {
  const Target& target = launch.target;
  ChildOptions options;
  options.arguments = settings.command;
  options.arguments[0] = target.file;
  if (target.program.needs_shell) {
    options.arguments.insert(options.arguments.begin(), target.program.elf);
  } else {
    options.name = settings.command[0];
  }
  if (!launch.preloads) {
    options.waits = true;
    if (!target.program.by_env.empty()) {
      options.arguments.insert(options.arguments.begin(), target.program.by_env);
      options.name.clear();
    }
    // LeakSanitizer stops all threads at the end, the agent too, and then touches all memory. A
    // later option has precedence.
    if (target.program.has_sanitizer)
      options.environment = {{"ASAN_OPTIONS", "detect_leaks=0:" + variable("ASAN_OPTIONS", "")}};
    return options;
  }
  options.environment = {
      {"LD_PRELOAD",
       preload_list(launch.preloads->shim, launch.preloads->allocator, variable("LD_PRELOAD", ""),
                    brings_allocator(target.program.elf))},
      // tcmalloc first uses sbrk, whose memory is local.
      {"TCMALLOC_SKIP_SBRK", variable("TCMALLOC_SKIP_SBRK", "1")},
      {handover::kSocketVariable, socket},
      {handover::kWindowVariable, std::to_string(settings.window_bytes)},
      {handover::kMinimumVariable, std::to_string(settings.mmap_min_bytes)},
      {handover::kForkVariable,
       launch.options.fork == pager::ForkMode::kShare ? handover::kForkShare : ""},
  };
  return options;
}

// Passes signals on while it is here.
template <typename Receiver>
class Relaying {
 public:
  Relaying(boost::asio::io_context& control, const SignalRelay& signals, const Receiver& receiver)
      : signals_(signals), receiver_(receiver), arrived_(control, signals.descriptor()) {
    await();
  }

 private:
  void await() {
    arrived_.wait([this] {
      signals_.relay(receiver_);
      await();
    });
  }

  const SignalRelay& signals_;
  const Receiver& receiver_;
  serve::Watch arrived_;
};

// Returns its status.
int follow(boost::asio::io_context& control, const SignalRelay& signals, Child& child) {
  const Relaying relaying(control, signals, child);
  serve::Watch end(control, child.pidfd());
  bool has_ended = false;
  end.wait([&] { has_ended = true; });
  while (!has_ended) (void)control.run_one();
  return child.wait();
}

// Prints why the program cannot run. Returns the same exit status as env, nice and timeout.
int refuse(const Error& error, int status) {
  fmt::print(stderr, "farpage: {}\n", error.message());
  return status;
}

int refuse(const Error& error) {
  return refuse(error, error.code == ErrorCode::kNotFound ? kExitNotFound : kExitCannotRun);
}

bool is_about_the_program(const Error& error) {
  return error.code == ErrorCode::kNotFound || error.code == ErrorCode::kUnsupported;
}

struct Ended {
  int status = 0;
  std::optional<Error> refusal = {};            // of the pager: the program was not started
  std::optional<serve::RunReport> report = {};  // none: it was not started, or its pager has ended
};

// Or the exit status: an early signal, or a program that cannot be executed.
Result<tl::expected<Child, int>> start_child(const RunSettings& settings, const Launch& launch,
                                             const std::string& socket) {
  if (const std::optional<int> signal = launch.signals.early())
    return tl::expected<Child, int>(tl::unexpect, kExitSignal + *signal);
  Result<Child> child = Child::start(target_options(settings, launch, socket));
  if (child) return tl::expected<Child, int>(std::move(*child));
  if (is_about_the_program(child.error()))
    return tl::expected<Child, int>(tl::unexpect, refuse(child.error()));
  return tl::unexpected(std::move(child).error());
}

// Gives a child that waits its agent, and has it execute the program. Or the exit status, as
// start_child().
Result<tl::expected<void, int>> inject_agent(Child& child, AttachedTree& tree) {
  using Injected = tl::expected<void, int>;
  const Status attached = tree.attach_at_exec(
      child.pid(), [&] { child.open_gate(); },
      [pid = child.pid()](Parting parting) {
        if (parting == Parting::kExecuted)
          log::warn(
              "run: local_only pid={}: the program has executed another one, "
              "which has no agent: its memory stays here",
              pid);
      });
  if (attached) return Injected();
  if (attached.error().code == ErrorCode::kNotFound) {  // it has ended
    if (const Status executed = child.await_exec(); !executed)
      return Injected(tl::unexpect, refuse(executed.error()));
    return Injected(tl::unexpect, child.wait());
  }
  return Injected(tl::unexpect, refuse(attached.error(), kExitCannotRun));
}

// Children of a program with an agent may outlive it.
void follow(boost::asio::io_context& control, const SignalRelay& signals, AttachedTree& tree) {
  const Relaying relaying(control, signals, tree);
  while (!tree.is_over() && !tree.failure()) (void)control.run_one();
  if (tree.failure()) log::error("run: not_followed reason=\"{}\"", tree.failure()->message());
}

// Has the pager serve the processes that hand their memory over here, and runs the program.
Result<Ended> run_program_at(serve::PagerSession& session, const RunSettings& settings,
                             const Launch& launch) {
  FARPAGE_TRY(directory, RunDirectory::create());
  FARPAGE_TRY(server, uffd::HandoverServer::listen(directory.socket_path()));
  const Status begun = session.begin({.program = settings.command.at(0),
                                      .local_bytes = launch.options.local_bytes,
                                      .fork = launch.options.fork},
                                     server.descriptor());
  if (!begun) return Ended{.refusal = begun.error()};
  FARPAGE_TRY(child, start_child(settings, launch, server.path()));
  if (!child) return Ended{.status = child.error()};
  const SteadyClock clock;
  boost::asio::io_context control(1);
  std::optional<AttachedTree> tree;
  if (!launch.preloads) {
    tree.emplace(control, clock, server.path(),
                 inject::AttachOptions{.least_bytes = settings.mmap_min_bytes});
    FARPAGE_TRY(injected, inject_agent(*child, *tree));
    if (!injected) return Ended{.status = injected.error()};
  }
  Ended ended{.status = follow(control, launch.signals, *child)};
  if (tree) follow(control, launch.signals, *tree);
  tree.reset();  // the pager sees the end of the connections
  Result<serve::RunReport> report = session.finish(ended.status);
  if (!report) {
    log::error("run: no_report reason=\"{}\"", report.error().message());
    return ended;
  }
  report->memory.peak_bytes = child->peak_resident_bytes();
  ended.report = std::move(*report);
  return ended;
}

// With a pager of its own.
Result<Ended> run_here(const RunSettings& settings, const Launch& launch) {
  FARPAGE_TRY(pager, ProgramPager::start(settings, launch.options));
  FARPAGE_TRY(ended, run_program_at(pager.session(), settings, launch));
  const int status = pager.wait();
  if (ended.refusal && (status == kExitOk || status > kExitSignal))
    return tl::unexpected(std::move(*ended.refusal));  // else it has said why
  if (status != kExitOk && (ended.report || ended.refusal)) ended.status = status;
  return ended;
}

// With the pager of the host. It kills the program by its own end.
Result<Ended> run_at_pager(const RunSettings& settings, const Launch& launch) {
  Result<serve::PagerSession> session = serve::PagerSession::connect(settings.host_pager);
  if (!session) return Ended{.status = refuse(session.error(), kExitCannotRun)};
  FARPAGE_TRY(ended, run_program_at(*session, settings, launch));
  if (ended.refusal) ended.status = refuse(*ended.refusal, kExitCannotRun);
  return ended;
}

// Says that an agent is injected where nobody has asked for that.
Status check_injection(const Target& target, bool asked) {
  const std::string& obstacle = target.program.obstacle;
  const std::string who = target.file + (obstacle.empty() ? "" : " " + obstacle);
  if (const Status able = inject::check_kernel(); !able)
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} cannot be given far memory: {}", who, able.error().message()));
  FARPAGE_TRY(self, inject::ProcessFiles::open(::getpid()));
  if (inject::has_seccomp(self))
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{} cannot be given far memory: a seccomp filter is on this process and "
                    "whatever it starts, and no agent can be injected there: run it "
                    "without (docker run --security-opt seccomp=unconfined)",
                    who));
  if (!asked)
    fmt::print(stderr, "farpage: {}, so nothing is preloaded: an agent is injected (--inject)\n",
               who);
  return {};
}

Result<int> run(RunSettings settings) {
  choose_sizes(settings, available_memory_bytes());
  FARPAGE_TRY_VOID(check(settings));
  FARPAGE_TRY(options, pager_options(settings));
  FARPAGE_TRY(fork, fork_mode(settings, uffd::fork_events_allowed()));
  options.fork = fork;
  FARPAGE_TRY_VOID(check_output("--stats-file", settings.stats_file));
  FARPAGE_TRY_VOID(check_output("--record-trace", settings.trace_file));
  Result<Target> target = find_target(settings.command.at(0));
  if (!target) return refuse(target.error());
  std::optional<Preloads> preloads;
  if (settings.injects || !target->program.obstacle.empty()) {
    if (const Status able = check_injection(*target, settings.injects); !able)
      return refuse(able.error());
    options.fork = pager::ForkMode::kShare;
  } else {
    FARPAGE_TRY(allocator, find_allocator(settings.allocator));
    FARPAGE_TRY(shim, find_shim());
    preloads = Preloads{std::move(shim), std::move(allocator)};
  }
  if (settings.host_pager.empty() && options.workers == 0 && options.adaptive_water_marks &&
      flushes_stop_other_cpus()) {
    log::debug("run: flushes_stop_other_cpus: one worker, eviction when a fault finds no room");
    pager::spare_flushes(options);
  }
  FARPAGE_TRY(signals, SignalRelay::create());
  const Launch launch{std::move(*target), std::move(preloads), options, std::move(signals)};
  FARPAGE_TRY(ended, settings.host_pager.empty() ? run_here(settings, launch)
                                                 : run_at_pager(settings, launch));
  if (!ended.report) return ended.status;
  if (settings.stats) fmt::print(stderr, "{}", ended.report->text);
  fmt::print(stderr, "{}", serve::local_memory_warning(ended.report->memory));
  FARPAGE_TRY_VOID(write_output("--stats-file", settings.stats_file, ended.report->json));
  return ended.status;
}

}  // namespace

void add_run(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<RunSettings>();
  Subcommand subcommand(
      root, "run", "Run a program with most of its memory on memory nodes",
      {"farpage run --local 64M --stats -- sort -S 1G big.txt",
       "farpage run --local 1G --coordinator http://10.0.0.1:7070 --token-file token -- ./program",
       "farpage run --local 512M --replicas 2 --coordinator http://10.0.0.1:7070 -- sqlite3",
       "farpage run --local 64M --allocator jemalloc -- sort -S 1G big.txt",
       "farpage run --local 64M --pager /run/farpage-pager/pager.sock -- sort -S 1G big.txt", "",
       "Exit status: the program's, or 128 + N when signal N ended it; 127 when the program is not",
       "found; 126 when it is found but cannot be executed, cannot have far memory (setuid, "
       "32-bit),",
       "or got no pager (no coordinator, no node); 1 when farpage fails, and 2 on wrong usage.", "",
       "Into a static program, or one built with a sanitizer, nothing can be preloaded: it gets an",
       "agent as by farpage attach, which needs Linux 6.9 and root."});
  add_options(subcommand, *settings);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
