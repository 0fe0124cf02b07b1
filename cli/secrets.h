// Bearer tokens from files: a command line would be visible to other users.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

inline constexpr size_t kMinTokenBytes = 16;
inline constexpr size_t kMaxTokenBytes = 256;

// The token in `file`: one line of printable ASCII without spaces, in a file that only its owner
// can read. An empty file name gives an empty token. Errors name the remedy: kInvalid, kNotFound,
// kDenied.
Result<std::string> read_token(const std::string& file);

}  // namespace farpage::cli
