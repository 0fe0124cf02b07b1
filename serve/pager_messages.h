// The messages between `farpage run` and a pager, its own or that of the host: one JSON object a
// line, on a unix stream socket. docs/protocol.md describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "pager/options.h"
#include "serve/run_report.h"

namespace farpage::serve {

inline constexpr size_t kMaxRequestBytes = size_t{16} << 10;

// A program with far memory. The listening socket of its hand-overs comes with it (SCM_RIGHTS).
struct BeginRun {
  std::string program;
  uint64_t local_bytes = 0;
  pager::ForkMode fork = pager::ForkMode::kRefuse;
};

// The program has ended. The answer, a RunReport, comes when all its processes have ended.
struct FinishRun {
  int exit_status = 0;
};

struct AskStatus {};

// The answer: a RunReport of the program that has begun on this connection, and goes on.
struct AskReport {};

// The holder goes on with this binary, by a successor of the engine.
struct Upgrade {
  std::string binary;          // its path
  uint64_t state_version = 0;  // of that build: pager::kStateVersion or snapshot::kStateVersion
};

using PagerRequest = std::variant<BeginRun, FinishRun, AskStatus, AskReport, Upgrade>;

// The output of --stats and --stats-file, and what the program's memory was.
struct RunReport {
  std::string text;
  std::string json;
  MemoryUse memory;
};

// A process, as `farpage status --pager` shows it.
struct TargetStatus {
  std::string program;
  int64_t pid = 0;
  std::string transports;
  uint64_t limit_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t remote_bytes = 0;
  uint64_t faults = 0;        // for which memory was fetched
  double fault_p99_us = 0.0;  // of all so far
};

struct RunStatus {
  std::string program;
  int64_t pid = 0;  // of `farpage run`
  int64_t user = 0;
  uint64_t local_bytes = 0;
  std::vector<TargetStatus> targets;
};

struct PagerStatus {
  int64_t engine = 0;        // its process
  std::string binary;        // of the engine
  uint64_t local_bytes = 0;  // that all runs may have together
  std::vector<RunStatus> runs;
  std::optional<uint64_t> guests = {};  // of a snapshot pager, which has no runs
};

// All requests have a version. It need not be one that is known here.
bool is_request(std::string_view line);
// Each with its newline. from_line(): kInvalid names the field; kUnsupported: another version.
std::string to_line(const PagerRequest& request);
Result<PagerRequest> request_from_line(std::string_view line);
std::string accepted_line();
std::string to_line(const Error& refusal);
std::string to_line(const RunReport& report);
std::string to_line(const PagerStatus& status);
// An answer is an object with one of these members, or a refusal.
inline constexpr char kAccepted[] = "accepted";
inline constexpr char kReport[] = "report";
inline constexpr char kStatus[] = "pager";
bool is_answer(std::string_view line, const char* member);
// The answers; a refusal is returned as the error that it carries.
Status accepted_from_line(std::string_view line);
Result<RunReport> report_from_line(std::string_view line);
Result<PagerStatus> status_from_line(std::string_view line);
// As `farpage status --pager --output json` prints it.
std::string json_of(const PagerStatus& status);

}  // namespace farpage::serve
