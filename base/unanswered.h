// Requests whose answer is missing: they may have been done, and may be answered when repeated.
#pragma once

#include "base/result.h"

namespace farpage {

// Who was asked, or whom that one asked, was not reached, or has not answered in time.
inline bool is_unanswered(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kTimedOut;
}

// Of a Result or a Status.
template <typename Answer>
bool is_unanswered(const Answer& answer) {
  return !answer && is_unanswered(answer.error().code);
}

}  // namespace farpage
