// Result<T>: a value or an error.
//
// Three kinds of errors, never mixed (docs/design-notes.md, "Errors"):
//   bug      FARPAGE_CHECK (check.h), aborts;
//   outcome  an expected result (already present, peer gone) is an enum; callers handle all;
//   failure  Result<T>: printed once, where it is handled.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace farpage {

// Only what a caller may need to distinguish; the context has the details.
enum class ErrorCode {
  kInvalid,      // the input is wrong: names the field and the fix
  kNotFound,     // no such object
  kConflict,     // wrong state for the call
  kUnavailable,  // peer or service unreachable; a retry may succeed
  kExhausted,    // a limit or a capacity is reached
  kDenied,       // privilege or credentials are missing
  kUnsupported,  // this kernel, device or build cannot do it
  kTimedOut,     // the deadline passed
  kIo,           // a system call failed: see sys_errno
};

std::string_view to_string(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kIo;
  std::string context;  // a sentence for the user: what failed, on what, and the fix if known
  int sys_errno = 0;    // 0 when no system call was involved

  // "context: strerror (code)".
  std::string message() const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string context) {
  return tl::unexpected<Error>(Error{code, std::move(context), 0});
}

// A failed system call: reads errno first, before anything can change it.
// EPERM and EACCES become kDenied, ENOMEM and similar kExhausted, ETIMEDOUT kTimedOut, else kIo.
tl::unexpected<Error> fail_errno(std::string_view context);
tl::unexpected<Error> fail_errno(std::string_view context, int sys_errno);

// Forwards a failure with more context in front.
tl::unexpected<Error> fail_with(std::string_view context, Error error);

}  // namespace farpage

// FARPAGE_TRY(name, expression): name is the value, or the function returns the failure.
// NOLINTBEGIN(bugprone-macro-parentheses): `name` is declared, not evaluated.
#define FARPAGE_TRY(name, expression)                                          \
  auto name##_result = (expression);                                           \
  if (!name##_result) return tl::unexpected(std::move(name##_result).error()); \
  auto name = std::move(*name##_result)
// NOLINTEND(bugprone-macro-parentheses)

// FARPAGE_TRY_VOID(expression): the same without the value.
#define FARPAGE_TRY_VOID(expression)                                                       \
  do {                                                                                     \
    auto farpage_try_result = (expression);                                                \
    if (!farpage_try_result) return tl::unexpected(std::move(farpage_try_result).error()); \
  } while (false)
