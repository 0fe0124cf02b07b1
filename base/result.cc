#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace farpage {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kExhausted:
      return "exhausted";
    case ErrorCode::kDenied:
      return "denied";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTimedOut:
      return "timed_out";
    case ErrorCode::kIo:
      return "io";
  }
  return "unknown";
}

std::string Error::message() const {
  std::string text = context;
  if (sys_errno != 0) {
    text += ": ";
    text += strerrordesc_np(sys_errno) != nullptr ? strerrordesc_np(sys_errno) : "unknown errno";
  }
  return text;
}

namespace {
ErrorCode code_of_errno(int sys_errno) {
  switch (sys_errno) {
    case EPERM:
    case EACCES:
      return ErrorCode::kDenied;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return ErrorCode::kExhausted;
    case ETIMEDOUT:
      return ErrorCode::kTimedOut;
    case ENOENT:
      return ErrorCode::kNotFound;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return ErrorCode::kUnavailable;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kIo;
  }
}
}  // namespace

tl::unexpected<Error> fail_errno(std::string_view context) {
  const int saved = errno;
  return fail_errno(context, saved);
}

tl::unexpected<Error> fail_errno(std::string_view context, int sys_errno) {
  return tl::unexpected<Error>(Error{code_of_errno(sys_errno), std::string(context), sys_errno});
}

tl::unexpected<Error> fail_with(std::string_view context, Error error) {
  error.context = std::string(context) + ": " + error.context;
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace farpage
