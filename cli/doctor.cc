// farpage doctor: reports whether farpage can run on this host, and how to enable what is missing.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/host_checks.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct DoctorSettings {
  std::string output = "text";
};

void print_json(const std::vector<Check>& checks) {
  nlohmann::json lines = nlohmann::json::array();
  for (const Check& check : checks)
    lines.push_back({{"name", check.name},
                     {"verdict", to_string(check.verdict)},
                     {"detail", check.detail},
                     {"cure", check.cure}});
  const nlohmann::json report = {{"can_run", can_run(checks)}, {"checks", lines}};
  fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_text(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    fmt::print("{:<9} {:<24} {}\n", to_string(check.verdict), check.name, check.detail);
    if (!check.cure.empty()) fmt::print("{:<9} {:<24} fix: {}\n", "", "", check.cure);
  }
  fmt::print("{}\n", can_run(checks) ? "This host can run farpage."
                                     : "This host cannot run farpage: fix what is missing.");
}

Result<int> examine(const DoctorSettings& settings) {
  const std::vector<Check> checks = check_host();
  settings.output == "json" ? print_json(checks) : print_text(checks);
  return can_run(checks) ? kExitOk : kExitFailure;
}

}  // namespace

void add_doctor(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<DoctorSettings>();
  Subcommand(root, "doctor",
             "Check whether this host can run farpage, and how to fix what is missing",
             {"farpage doctor", "farpage doctor --output json"})
      .choice("--output", settings->output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return examine(*settings); });
}

}  // namespace farpage::cli
