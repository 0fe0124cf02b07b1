#include "http/problem.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "http/json_reader.h"
#include "http/url.h"

namespace farpage::http {
namespace {

constexpr ErrorCode kCodes[] = {
    ErrorCode::kInvalid,     ErrorCode::kNotFound,  ErrorCode::kConflict,
    ErrorCode::kUnavailable, ErrorCode::kExhausted, ErrorCode::kDenied,
    ErrorCode::kUnsupported, ErrorCode::kTimedOut,  ErrorCode::kIo};

ErrorCode code_of_status(int status) {
  switch (status) {
    case 401:
    case 403:
      return ErrorCode::kDenied;
    case 404:
    case 410:
      return ErrorCode::kNotFound;
    case 409:
      return ErrorCode::kConflict;
    case 501:
      return ErrorCode::kUnsupported;
    case 502:
    case 503:
      return ErrorCode::kUnavailable;
    case 504:
      return ErrorCode::kTimedOut;
    case 507:
      return ErrorCode::kExhausted;
    default:
      return status < 500 ? ErrorCode::kInvalid : ErrorCode::kIo;
  }
}

}  // namespace

std::optional<ErrorCode> error_code_from(std::string_view name) {
  for (const ErrorCode known : kCodes)
    if (name == to_string(known)) return known;
  return std::nullopt;
}

int status_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalid:
      return field_of(error).empty() ? 400 : 422;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kConflict:
      return 409;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kExhausted:
      return 507;
    case ErrorCode::kDenied:
      return 401;
    case ErrorCode::kUnsupported:
      return 501;
    case ErrorCode::kTimedOut:
      return 504;
    case ErrorCode::kIo:
      return 500;
  }
  return 500;
}

std::string encode_problem(int status, const Error& error,
                           const std::optional<std::string>& leader) {
  const std::string code(to_string(error.code));
  nlohmann::json problem{{"type", "urn:farpage:problem:" + code},
                         {"title", code},
                         {"status", status},
                         {"detail", error.message()},
                         {"code", code}};
  if (std::string field = field_of(error); !field.empty()) problem["field"] = std::move(field);
  if (leader) problem["leader"] = *leader;
  return problem.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<std::string> leader_of_problem(std::string_view body) {
  const auto document = parse_json_object(body);
  if (!document) return std::nullopt;
  JsonReader reader(**document, UnknownFields::kIgnore);
  if (!reader.has("leader")) return std::nullopt;
  return reader.text_or_empty("leader", kMaxUrlBytes);
}

Error error_of_answer(int status, std::string_view body) {
  Error error{code_of_status(status), fmt::format("HTTP status {}", status), 0};
  const auto document = parse_json_object(body);
  if (!document) return error;
  JsonReader reader(**document, UnknownFields::kIgnore);
  const std::string code = reader.text_or_empty("code", kMaxNameBytes);
  const std::string detail = reader.text_or_empty("detail", kMaxDetailBytes);
  error.code = error_code_from(code).value_or(error.code);
  if (!detail.empty()) error.context = detail;
  return error;
}

}  // namespace farpage::http
