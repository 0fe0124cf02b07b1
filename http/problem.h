// Failures on the wire: application/problem+json (RFC 9457).
//
//   {"type": "urn:farpage:problem:conflict", "title": "conflict", "status": 409,
//    "detail": "a sentence with the remedy", "code": "conflict", "field": "transports[0].kind"}
//
// `code` is the name of our ErrorCode, so that a C++ client gets the server's code. `field` is
// present when one field of the request is wrong.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage::http {

inline constexpr char kProblemType[] = "application/problem+json";

// The HTTP status of a failure: 400 malformed, 422 a wrong field, 404, 409, 503, 507
// (exhausted), 401, 501, 504, 500.
int status_of(const Error& error);

// `leader`: a further member, for the answer of a coordinator that does not lead.
std::string encode_problem(int status, const Error& error,
                           const std::optional<std::string>& leader = std::nullopt);
// That member of a problem; nullopt: it has none, or is no problem.
std::optional<std::string> leader_of_problem(std::string_view body);

// A code by its name.
std::optional<ErrorCode> error_code_from(std::string_view name);
inline constexpr size_t kMaxDetailBytes = 4096;

// The error in an answer of 400 and above. A body that is not problem+json is described by its
// status only.
Error error_of_answer(int status, std::string_view body);

}  // namespace farpage::http
