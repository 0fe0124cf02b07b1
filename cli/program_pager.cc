#include "cli/program_pager.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <vector>

#include "base/host.h"
#include "base/log.h"
#include "cli/engine_parts.h"
#include "cli/program.h"
#include "cli/spill.h"
#include "pager/touch_recorder.h"
#include "serve/holder.h"
#include "serve/host_pager.h"
#include "serve/served_state.h"

namespace farpage::cli {
namespace {

// `whole`: from the program's start on.
Status write_trace_file(const std::string& path, const std::vector<serve::TargetReport>& reports,
                        bool whole) {
  const serve::TargetReport* most = nullptr;
  for (const serve::TargetReport& report : reports)
    if (report.touches && (most == nullptr || report.touches->size() > most->touches->size()))
      most = &report;
  const std::optional<pager::AccessTrace> trace =
      most != nullptr ? most->touches->trace() : std::nullopt;
  if (!whole)
    log::warn("run: trace_incomplete: the engine was killed, and what it had recorded is lost");
  if (!trace && !whole) return {};
  if (!trace) return fail(ErrorCode::kNotFound, "--record-trace: no far page was touched");
  if (const Status written = trace->write_file(path); !written)
    return fail_with("--record-trace", written.error());
  fmt::print(stderr, "farpage: {} touches of {} (pid {}) are in {}\n", trace->size(), most->program,
             most->pid, path);
  return {};
}

// The engine's process.
Result<int> run_engine(const RunSettings& settings, const pager::PagerOptions& options,
                       int connection, StateStore& store) {
  FARPAGE_TRY(state, serve::ServedState::create(&store));
  FARPAGE_TRY(parts, EngineParts::create(settings, options, &store));
  boost::asio::io_context control(1);
  Status recorded;
  serve::HostPagerOptions pager_options{.pager = options, .scope = settings.budget_scope()};
  if (!settings.trace_file.empty())
    pager_options.on_reports = [&](const std::vector<serve::TargetReport>& reports, bool whole) {
      recorded = write_trace_file(settings.trace_file, reports, whole);
    };
  FARPAGE_TRY(pager, serve::HostPager::serve_one(control, connection, *parts->engine,
                                                 std::move(pager_options), state));
  pager->run_to_end();
  return recorded ? kExitOk : exit_status_of(tl::unexpected(recorded.error()));
}

// The holder's process. It ends with `parent`, which has blocked the signals that end a program.
[[noreturn]] void run_holder(const RunSettings& settings, const pager::PagerOptions& options,
                             int connection, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "farpage-holder");
  if (::getppid() != parent) ::_exit(kExitFailure);
  raise_descriptor_limit();  // each target needs descriptors
  ::_exit(exit_status_of(
      serve::hold(serve::EndSignals::kBlocked, [&](StateStore& store, bool takes_over) {
        return status_of_engine(run_engine(settings, options, connection, store), takes_over);
      })));
}

}  // namespace

Result<ProgramPager> ProgramPager::start(RunSettings settings, const pager::PagerOptions& options) {
  FARPAGE_TRY(cluster, start_missing_cluster(settings));
  if (!settings.command.empty()) warn_of_room(settings);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail_errno("socketpair");
  Fd own(ends[0]);
  const Fd pagers(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t holder = ::fork();
  if (holder < 0) return fail_errno("fork");
  if (holder == 0) {
    own.reset();
    run_holder(settings, options, pagers.get(), parent);
  }
  return ProgramPager(std::move(cluster), holder, serve::PagerSession::over(std::move(own)));
}

ProgramPager::~ProgramPager() {
  (void)wait();
}

int ProgramPager::wait() {
  session_.reset();
  if (holder_ < 0) return kExitOk;
  int status = 0;
  while (::waitpid(holder_, &status, 0) < 0 && errno == EINTR) {
  }
  holder_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignal + WTERMSIG(status);
}

}  // namespace farpage::cli
