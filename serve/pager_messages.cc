#include "serve/pager_messages.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "uffd/handover.h"

namespace farpage::serve {
namespace {

using nlohmann::json;

constexpr std::array kCodes{ErrorCode::kInvalid,     ErrorCode::kNotFound,  ErrorCode::kConflict,
                            ErrorCode::kUnavailable, ErrorCode::kExhausted, ErrorCode::kDenied,
                            ErrorCode::kUnsupported, ErrorCode::kTimedOut,  ErrorCode::kIo};

std::string line_of(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

tl::unexpected<Error> bad(const char* field, const char* rule) {
  return fail(ErrorCode::kInvalid, fmt::format("{}: {}", field, rule));
}

Result<json> object_in(std::string_view line) {
  json message = json::parse(line, nullptr, false);
  if (!message.is_object()) return fail(ErrorCode::kInvalid, "the message is not a JSON object");
  return message;
}

Result<std::string> text_in(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_string()) return bad(field, "must be a string");
  return found->get<std::string>();
}

Result<uint64_t> number_in(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number_unsigned())
    return bad(field, "must be a whole number that is not negative");
  return found->get<uint64_t>();
}

Result<PagerRequest> begin_from(const json& begin) {
  FARPAGE_TRY(program, text_in(begin, "program"));
  FARPAGE_TRY(local_bytes, number_in(begin, "local_bytes"));
  FARPAGE_TRY(fork, text_in(begin, "fork"));
  const std::optional<pager::ForkMode> mode = pager::fork_mode_from(fork);
  if (!mode) return bad("fork", "must be refuse, pull-in or share");
  return BeginRun{.program = std::move(program), .local_bytes = local_bytes, .fork = *mode};
}

Result<PagerRequest> upgrade_from(const json& upgrade) {
  FARPAGE_TRY(binary, text_in(upgrade, "binary"));
  FARPAGE_TRY(state_version, number_in(upgrade, "state_version"));
  return Upgrade{.binary = std::move(binary), .state_version = state_version};
}

json json_of(const TargetStatus& target) {
  return {{"program", target.program},
          {"pid", target.pid},
          {"transports", target.transports},
          {"limit_bytes", target.limit_bytes},
          {"resident_bytes", target.resident_bytes},
          {"remote_bytes", target.remote_bytes},
          {"faults", target.faults},
          {"fault_p99_us", target.fault_p99_us}};
}

json json_of(const RunStatus& run) {
  json targets = json::array();
  for (const TargetStatus& target : run.targets) targets.push_back(json_of(target));
  return {{"program", run.program},
          {"pid", run.pid},
          {"user", run.user},
          {"local_bytes", run.local_bytes},
          {"targets", targets}};
}

json object_of(const PagerStatus& status) {
  json runs = json::array();
  for (const RunStatus& run : status.runs) runs.push_back(json_of(run));
  json object = {{"engine", status.engine},
                 {"binary", status.binary},
                 {"local_bytes", status.local_bytes},
                 {"runs", runs}};
  if (status.guests) object["guests"] = *status.guests;
  return object;
}

Error error_from(const json& error) {
  const Result<std::string> code = text_in(error, "code");
  const Result<std::string> text = text_in(error, "text");
  if (code && text)
    for (const ErrorCode each : kCodes)
      if (to_string(each) == *code) return {each, *text, 0};
  return {ErrorCode::kUnsupported, "the pager refuses for a reason that this farpage does not know",
          0};
}

// The member that the answer must have, unless it is a refusal.
Result<json> answer_in(std::string_view line, const char* member) {
  FARPAGE_TRY(message, object_in(line));
  if (message.contains("error") && message["error"].is_object())
    return tl::unexpected(error_from(message["error"]));
  if (!message.contains(member) || !message[member].is_object())
    return fail(ErrorCode::kUnsupported,
                "the pager sent an answer that this farpage does not know");
  return message[member];
}

// The answer comes from the same build, so a field of another type is a defect of it.
template <typename Read>
auto read_answer(Read&& read) -> Result<decltype(read())> {
  try {
    return read();
  } catch (const json::exception& problem) {
    return fail(ErrorCode::kUnsupported, fmt::format("the pager's answer: {}", problem.what()));
  }
}

TargetStatus target_from(const json& target) {
  return {.program = target.at("program"),
          .pid = target.at("pid"),
          .transports = target.at("transports"),
          .limit_bytes = target.at("limit_bytes"),
          .resident_bytes = target.at("resident_bytes"),
          .remote_bytes = target.at("remote_bytes"),
          .faults = target.at("faults"),
          .fault_p99_us = target.at("fault_p99_us")};
}

}  // namespace

std::string to_line(const PagerRequest& request) {
  json message = {{"version", uffd::handover::kVersion}};
  if (const auto* begin = std::get_if<BeginRun>(&request)) {
    message["begin"] = {{"program", begin->program},
                        {"local_bytes", begin->local_bytes},
                        {"fork", to_string(begin->fork)}};
  } else if (const auto* finish = std::get_if<FinishRun>(&request)) {
    message["finish"] = {{"exit_status", finish->exit_status}};
  } else if (const auto* upgrade = std::get_if<Upgrade>(&request)) {
    message["upgrade"] = {{"binary", upgrade->binary}, {"state_version", upgrade->state_version}};
  } else if (std::holds_alternative<AskReport>(request)) {
    message["report"] = json::object();
  } else {
    message["status"] = json::object();
  }
  return line_of(message);
}

bool is_request(std::string_view line) {
  const Result<json> message = object_in(line);
  return message && message->contains("version");
}

Result<PagerRequest> request_from_line(std::string_view line) {
  FARPAGE_TRY(message, object_in(line));
  FARPAGE_TRY(version, number_in(message, "version"));
  if (version != uffd::handover::kVersion)
    return fail(ErrorCode::kUnsupported,
                "this pager is of another version: use the farpage that started it");
  const auto member = [&message](const char* name) {
    return message.contains(name) && message[name].is_object();
  };
  if (member("begin")) return begin_from(message["begin"]);
  if (member("status")) return PagerRequest(AskStatus{});
  if (member("report")) return PagerRequest(AskReport{});
  if (member("upgrade")) return upgrade_from(message["upgrade"]);
  if (!member("finish"))
    return fail(ErrorCode::kInvalid, "the message has no begin, finish, status, report or upgrade");
  FARPAGE_TRY(status, number_in(message["finish"], "exit_status"));
  return PagerRequest(FinishRun{static_cast<int>(status & 0xff)});
}

std::string accepted_line() {
  return line_of({{kAccepted, json::object()}});
}

std::string to_line(const Error& refusal) {
  return line_of({{"error", {{"code", to_string(refusal.code)}, {"text", refusal.message()}}}});
}

std::string to_line(const RunReport& report) {
  return line_of({{kReport,
                   {{"text", report.text},
                    {"json", report.json},
                    {"local_bytes", report.memory.local_bytes},
                    {"far_bytes", report.memory.far_bytes}}}});
}

std::string to_line(const PagerStatus& status) {
  return line_of({{kStatus, object_of(status)}});
}

std::string json_of(const PagerStatus& status) {
  return object_of(status).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

bool is_answer(std::string_view line, const char* member) {
  const Result<json> message = object_in(line);
  return message && (message->contains(member) || message->contains("error"));
}

Status accepted_from_line(std::string_view line) {
  FARPAGE_TRY_VOID(answer_in(line, kAccepted));
  return {};
}

Result<RunReport> report_from_line(std::string_view line) {
  FARPAGE_TRY(report, answer_in(line, kReport));
  return read_answer([&report] {
    return RunReport{.text = report.at("text"),
                     .json = report.at("json"),
                     .memory = {.local_bytes = report.at("local_bytes"),
                                .peak_bytes = 0,
                                .far_bytes = report.at("far_bytes")}};
  });
}

Result<PagerStatus> status_from_line(std::string_view line) {
  FARPAGE_TRY(pager, answer_in(line, kStatus));
  return read_answer([&pager] {
    PagerStatus status{.engine = pager.at("engine"),
                       .binary = pager.at("binary"),
                       .local_bytes = pager.at("local_bytes"),
                       .runs = {},
                       .guests = {}};
    if (pager.contains("guests")) status.guests = pager["guests"].get<uint64_t>();
    for (const json& run : pager.at("runs")) {
      RunStatus& last = status.runs.emplace_back(RunStatus{.program = run.at("program"),
                                                           .pid = run.at("pid"),
                                                           .user = run.at("user"),
                                                           .local_bytes = run.at("local_bytes"),
                                                           .targets = {}});
      for (const json& target : run.at("targets")) last.targets.push_back(target_from(target));
    }
    return status;
  });
}

}  // namespace farpage::serve
