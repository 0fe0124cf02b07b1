// Failures on the wire: application/problem+json (RFC 9457).
//
//   {"type": "urn:farpage:problem:conflict", "title": "conflict", "status": 409,
//    "detail": "a sentence with the cure", "code": "conflict", "field": "transports[0].gid"}
//
// `code` is the name of our ErrorCode, so that a C++ client gets back what the server failed with;
// `field` is there when one field of the request is to blame.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage::coordinator {

inline constexpr char kProblemType[] = "application/problem+json";

// The status that goes with a failure: 400 malformed, 422 a wrong field, 404, 409, 503, 507
// (exhausted), 401, 501, 504, 500.
int status_of(const Error& error);

std::string encode_problem(int status, const Error& error);

// What an answer of 400 and above says. Bodies that are no problem+json are described by their
// status alone.
Error error_of_answer(int status, std::string_view body);

}  // namespace farpage::coordinator
