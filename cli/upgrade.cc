// farpage upgrade: a running pager, or `farpage serve`, goes on with this binary.
#include <fmt/format.h>

#include <thread>

#include "cli/subcommand.h"
#include "pager/succession.h"
#include "serve/holder.h"
#include "serve/pager_session.h"
#include "snapshot/snapshot_state.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kLook{20};
constexpr Seconds kPatience{30};

struct UpgradeSettings {
  std::string host_pager;
  std::string snapshot_pager;
};

// What is upgraded.
struct Running {
  std::string subcommand;
  std::string path;  // of its socket
  uint64_t state_version = 0;

  bool serves_guests() const { return subcommand == "serve"; }
};

Result<serve::PagerStatus> status_of(const Running& running) {
  FARPAGE_TRY(session, serve::PagerSession::connect(running.path, running.subcommand));
  FARPAGE_TRY(status, session.status());
  if (status.guests.has_value() != running.serves_guests())
    return fail(ErrorCode::kInvalid,
                fmt::format("--{}: {} is the socket of a farpage {}", running.subcommand,
                            running.path, running.serves_guests() ? "pager" : "serve"));
  return status;
}

std::string whom_it_serves(const serve::PagerStatus& status) {
  return status.guests ? fmt::format("guests {}", *status.guests)
                       : fmt::format("programs {}", status.runs.size());
}

Result<int> upgrade(const Running& running) {
  const std::string binary = serve::own_binary();
  FARPAGE_TRY(before, status_of(running));
  {
    FARPAGE_TRY(session, serve::PagerSession::connect(running.path, running.subcommand));
    FARPAGE_TRY_VOID(session.upgrade({binary, running.state_version}));
  }
  const Instant end = SteadyClock::read() + kPatience;
  while (SteadyClock::read() < end) {
    const Result<serve::PagerStatus> now = status_of(running);
    if (now && now->engine != before.engine) {
      if (now->binary != binary)
        return fail(ErrorCode::kIo, fmt::format("farpage {} goes on with {}: its log says why",
                                                running.subcommand, now->binary));
      fmt::print("{} {}: {} -> {}, {}\n", running.subcommand, running.path, before.binary,
                 now->binary, whom_it_serves(*now));
      return kExitOk;
    }
    std::this_thread::sleep_for(kLook);
  }
  return fail(
      ErrorCode::kTimedOut,
      fmt::format("farpage {} has not gone on with this binary: see its log", running.subcommand));
}

Result<int> upgrade(const UpgradeSettings& settings) {
  if (!settings.snapshot_pager.empty())
    return upgrade({"serve", settings.snapshot_pager, snapshot::kStateVersion});
  if (!settings.host_pager.empty())
    return upgrade({"pager", settings.host_pager, pager::kStateVersion});
  return fail(ErrorCode::kInvalid, "--pager PATH or --serve PATH: one of them is needed");
}

}  // namespace

void add_upgrade(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<UpgradeSettings>();
  Subcommand(
      root, "upgrade", "Have a running pager, or farpage serve, go on with this binary",
      {"/opt/farpage-new/bin/farpage upgrade --pager /run/farpage-pager/pager.sock",
       "/opt/farpage-new/bin/farpage upgrade --serve /run/farpage/ubuntu.sock",
       "Programs and guests wait at their next fault meanwhile, some 10 ms, and go on. What is "
       "upgraded keeps its options.",
       "Refused where that build cannot go on with what the running one keeps."})
      .text("--pager", settings->host_pager, "Socket of a farpage pager")
      .text("--serve", settings->snapshot_pager,
            "Any socket of a farpage serve: its --socket, or control.sock in its --socket-dir")
      .excludes("--pager")
      .on_run(invocation, [settings] { return upgrade(*settings); });
}

}  // namespace farpage::cli
