// One subcommand of the binary: its options, examples and action.
//
// To add one: declare its add_ function below and put it into the table in program.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace farpage::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // invalid command line, environment or file
// `farpage run` cannot start the program.
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignal = 128;  // + the signal's number

// The action that the command line selected. Its value is the exit status. An error is printed as
// one line; the exit status is kExitUsage for kInvalid, else kExitFailure.
struct Invocation {
  std::function<Result<int>()> run;
};

// A subcommand under construction. Each option is a flag (--lend), an environment variable
// (FARPAGE_NODE_LEND, FARPAGE_BENCH_FAULT_SIZE; without the subcommand for options that mean the
// same everywhere: FARPAGE_COORDINATOR) and a key of the configuration file (lend in [node], size
// in [bench.fault]), in this order of precedence. A flag may have a short form: "-s,--size". Values
// are stored by reference and must outlive the run.
class Subcommand {
 public:
  // `examples`: lines for the end of the help text.
  Subcommand(CLI::App& root, const std::string& name, const std::string& summary,
             const std::vector<std::string>& examples);

  enum class Scope { kOwn, kShared };  // of the environment variable's name
  Subcommand& text(const std::string& flag, std::string& value, const std::string& help,
                   Scope scope = Scope::kOwn);
  // May be given several times; in the environment and the file with commas.
  Subcommand& texts(const std::string& flag, std::vector<std::string>& values,
                    const std::string& help);
  Subcommand& choice(const std::string& flag, std::string& value,
                     const std::vector<std::string>& allowed, const std::string& help,
                     Scope scope = Scope::kOwn);
  Subcommand& number(const std::string& flag, int64_t& value, int64_t lowest, int64_t highest,
                     const std::string& help);
  // "1G"
  Subcommand& size(const std::string& flag, uint64_t& bytes, const std::string& help);
  // The same without a default: nullopt if absent.
  Subcommand& size(const std::string& flag, std::optional<uint64_t>& bytes,
                   const std::string& help);
  // "500ms", "30s", "2m"; a bare number is seconds.
  Subcommand& duration(const std::string& flag, Milliseconds& value, const std::string& help);
  // The same without a default: nullopt if absent.
  Subcommand& duration(const std::string& flag, std::optional<Milliseconds>& value,
                       const std::string& help);
  Subcommand& flag(const std::string& flag, bool& value, const std::string& help);
  // A required argument without a flag, environment variable or key of the file.
  Subcommand& positional(const std::string& name, int64_t& value, int64_t lowest, int64_t highest,
                         const std::string& help);
  Subcommand& positional(const std::string& name, std::string& value, const std::string& help);
  // Makes the last added option required.
  Subcommand& required();
  // Makes the last added option mutually exclusive with `flag`, which was added before.
  Subcommand& excludes(const std::string& flag);
  // Makes the last added option one that has an effect only with `flag`, which was added before.
  Subcommand& needs(const std::string& flag);
  // Makes the last added option exclude all that were added before, except these.
  Subcommand& excludes_all_but(const std::vector<std::string>& flags);
  // The command to run: all arguments from the first that is not an option, unchanged.
  Subcommand& command_line(std::vector<std::string>& value, const std::string& help);

  // Sets the action of this subcommand.
  void on_run(Invocation& invocation, std::function<Result<int>()> run);

 private:
  void last(CLI::Option* option, const std::string& flag, Scope scope);
  template <typename Value>
  CLI::Option* add_size(const std::string& flag, Value& bytes, const std::string& help);
  template <typename Value>
  void add_duration(const std::string& flag, Value& value, const std::string& help);

  CLI::App* app_;
  CLI::Option* last_ = nullptr;
};

// "500ms", "30s", "2m", "1h"; a bare number is seconds. kInvalid otherwise.
Result<Milliseconds> parse_duration(const std::string& text);

// A subcommand that only contains others ("bench"): one of them must follow on the command line.
CLI::App& add_group(CLI::App& root, const std::string& name, const std::string& summary,
                    const std::vector<std::string>& examples);

void add_run(CLI::App& root, Invocation& invocation);
void add_attach(CLI::App& root, Invocation& invocation);
void add_detach(CLI::App& root, Invocation& invocation);
void add_pager(CLI::App& root, Invocation& invocation);
void add_resize(CLI::App& root, Invocation& invocation);
void add_maintenance(CLI::App& root, Invocation& invocation);
void add_rebalance(CLI::App& root, Invocation& invocation);
void add_upgrade(CLI::App& root, Invocation& invocation);
void add_coordinator(CLI::App& root, Invocation& invocation);
void add_image(CLI::App& root, Invocation& invocation);
void add_serve(CLI::App& root, Invocation& invocation);
void add_share(CLI::App& root, Invocation& invocation);
void add_page_server(CLI::App& root, Invocation& invocation);
void add_node(CLI::App& root, Invocation& invocation);
void add_status(CLI::App& root, Invocation& invocation);
void add_doctor(CLI::App& root, Invocation& invocation);
void add_bench(CLI::App& root, Invocation& invocation);
void add_bench_fault(CLI::App& group, Invocation& invocation);
void add_bench_read(CLI::App& group, Invocation& invocation);
void add_bench_ladder(CLI::App& group, Invocation& invocation);
void add_bench_scan(CLI::App& group, Invocation& invocation);
void add_bench_evict(CLI::App& group, Invocation& invocation);
void add_bench_connect(CLI::App& group, Invocation& invocation);
void add_bench_register(CLI::App& group, Invocation& invocation);
void add_bench_control(CLI::App& group, Invocation& invocation);
void add_version(CLI::App& root, Invocation& invocation);

}  // namespace farpage::cli
