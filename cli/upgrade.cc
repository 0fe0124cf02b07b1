// farpage upgrade: a running pager goes on with this binary.
#include <fmt/format.h>

#include <thread>

#include "cli/subcommand.h"
#include "pager/succession.h"
#include "serve/holder.h"
#include "serve/pager_session.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kLook{20};
constexpr Seconds kPatience{30};

struct UpgradeSettings {
  std::string host_pager;
};

Result<serve::PagerStatus> status_of(const std::string& path) {
  FARPAGE_TRY(session, serve::PagerSession::connect(path));
  return session.status();
}

Result<int> upgrade(const UpgradeSettings& settings) {
  const std::string binary = serve::own_binary();
  FARPAGE_TRY(before, status_of(settings.host_pager));
  {
    FARPAGE_TRY(session, serve::PagerSession::connect(settings.host_pager));
    FARPAGE_TRY_VOID(session.upgrade({binary, pager::kStateVersion}));
  }
  const Instant end = SteadyClock::read() + kPatience;
  while (SteadyClock::read() < end) {
    const Result<serve::PagerStatus> now = status_of(settings.host_pager);
    if (now && now->engine != before.engine) {
      if (now->binary != binary)
        return fail(ErrorCode::kIo,
                    fmt::format("the pager goes on with {}: its log says why", now->binary));
      fmt::print("pager {}: {} -> {}, programs {}\n", settings.host_pager, before.binary,
                 now->binary, now->runs.size());
      return kExitOk;
    }
    std::this_thread::sleep_for(kLook);
  }
  return fail(ErrorCode::kTimedOut, "the pager has not gone on with this binary: see its log");
}

}  // namespace

void add_upgrade(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<UpgradeSettings>();
  Subcommand(
      root, "upgrade", "Have a running pager go on with this binary",
      {"/opt/farpage-new/bin/farpage upgrade --pager /run/farpage-pager/pager.sock",
       "Its programs wait at their next fault meanwhile, some 10 ms, and go on. The pager keeps "
       "its options.",
       "Refused where that build cannot go on with what the pager keeps of its programs."})
      .text("--pager", settings->host_pager, "Socket of the pager")
      .required()
      .on_run(invocation, [settings] { return upgrade(*settings); });
}

}  // namespace farpage::cli
