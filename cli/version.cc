// farpage version: prints the build information.
#include <fmt/format.h>

#include <cstdio>

#include "cli/build_info.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct VersionSettings {
  std::string output = "text";
};

Result<int> print_version(const VersionSettings& settings) {
  const BuildInfo build = build_info();
  if (settings.output == "json") {
    fmt::print(
        "{{\"version\":\"{}\",\"commit\":\"{}\",\"build_type\":\"{}\",\"transports\":[\"{}\"]}}\n",
        build.version, build.commit, build.build_type, fmt::join(build.transports, "\",\""));
    return kExitOk;
  }
  fmt::print("farpage {}\ncommit      {}\nbuild type  {}\ntransports  {}\n", build.version,
             build.commit, build.build_type, fmt::join(build.transports, ", "));
  return kExitOk;
}

}  // namespace

void add_version(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<VersionSettings>();
  Subcommand(root, "version", "Print version, commit, build type and transports",
             {"farpage version", "farpage version --output json"})
      .choice("--output", settings->output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared)
      .on_run(invocation, [settings] { return print_version(*settings); });
}

}  // namespace farpage::cli
