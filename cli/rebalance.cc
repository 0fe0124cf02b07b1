// farpage rebalance: moves slabs from full memory nodes to emptier ones.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "cli/patient_asker.h"
#include "cli/secrets.h"
#include "cli/subcommand.h"
#include "coordinator/operator_client.h"

namespace farpage::cli {
namespace {

struct RebalanceSettings {
  std::string coordinator = "http://127.0.0.1:7070";
  std::string token_file;
  int64_t within_percent = 5;
  int64_t at_most = 16;
  Milliseconds timeout = std::chrono::minutes(30);
};

std::string text_of(const coordinator::Rebalanced& done) {
  return fmt::format("nodes use {} % to {} % of what they lend", done.lowest_percent,
                     done.highest_percent);
}

// The command is the loop: each call says what has moved, and marks what is to move next.
Result<int> rebalance(const RebalanceSettings& settings) {
  constexpr Milliseconds kLook{300};
  constexpr Nanoseconds kPatience = std::chrono::minutes(5);
  FARPAGE_TRY(token, read_token(settings.token_file));
  FARPAGE_TRY(client, coordinator::OperatorClient::create({settings.coordinator, token}));
  const coordinator::Rebalance wanted{static_cast<uint32_t>(settings.within_percent),
                                      static_cast<uint32_t>(settings.at_most)};
  PatientAsker asker(SteadyClock::read() + settings.timeout);
  std::string said;
  // Of the last progress: the shares have changed, or less is to move than ever. A slab that cannot
  // move is marked again and again, which is none.
  std::string shares_then;
  uint32_t least = UINT32_MAX;
  Instant moved_at = SteadyClock::read();
  while (true) {
    FARPAGE_TRY(done, asker([&] { return client->rebalance(wanted); }));
    const std::string shares = text_of(done);
    if (done.moving == 0 && done.left == 0) {
      const bool even = done.highest_percent - done.lowest_percent <= wanted.within_percent;
      fmt::print("{}: {}\n", even ? "balanced" : "nothing more can be moved", shares);
      return kExitOk;
    }
    std::string text =
        fmt::format("{} slabs are moving, {} more to move; {}", done.moving, done.left, shares);
    if (text != said) fmt::print(stderr, "{}\n", text);
    if (done.moving + done.left < least || shares != shares_then) {
      moved_at = SteadyClock::read();
      least = std::min(least, done.moving + done.left);
      shares_then = shares;
    } else if (SteadyClock::read() - moved_at > kPatience) {
      return fail(ErrorCode::kTimedOut,
                  fmt::format("{}; nothing has moved for some minutes: can the programs reach the "
                              "nodes that are emptier?",
                              text));
    }
    said = std::move(text);
    if (asker.is_over())
      return fail(ErrorCode::kTimedOut,
                  fmt::format("{} slabs are still moving, {} more would have to: {}; see the logs "
                              "of the programs, and give the command again",
                              done.moving, done.left, shares));
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

void add_rebalance(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<RebalanceSettings>();
  Subcommand(root, "rebalance", "Move slabs from full memory nodes to emptier ones",
             {"farpage rebalance --coordinator http://10.0.0.1:7070",
              "Programs go on meanwhile: they copy their slabs, at their --repair-rate. It may be "
              "interrupted, and given again: at most --at-most slabs still move then.",
              "Images, and nodes that are cordoned, drain, or lend more or less just now, are left "
              "as they are."})
      .text("--coordinator", settings->coordinator,
            "URL of the coordinator; of several all, with commas between",
            Subcommand::Scope::kShared)
      .text("--token-file", settings->token_file, "File with the bearer token",
            Subcommand::Scope::kShared)
      .number("--within", settings->within_percent, 1, 50,
              "Ends when the shares of lent memory that nodes use differ by as many percent")
      .number("--at-most", settings->at_most, 1, 4096, "Slabs that move at the same time")
      .duration("--timeout", settings->timeout,
                "How long to wait until it is done; it also ends when nothing moves for 5 minutes")
      .on_run(invocation, [settings] { return rebalance(*settings); });
}

}  // namespace farpage::cli
