#include "cli/secrets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/fd.h"

namespace farpage::cli {

Result<std::string> read_token(const std::string& file) {
  if (file.empty()) return std::string();
  FARPAGE_TRY(fd, Fd::from_call(::open(file.c_str(), O_RDONLY | O_CLOEXEC),
                                fmt::format("token-file {}", file)));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail_errno(fmt::format("token-file {}", file));
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::kInvalid, fmt::format("token-file {}: is not a regular file", file));
  if ((status.st_mode & 0077) != 0)
    return fail(ErrorCode::kInvalid,
                fmt::format("token-file {}: others can read it; chmod 600 {}", file, file));
  std::array<char, kMaxTokenBytes + 2> bytes{};
  const ssize_t got = ::read(fd.get(), bytes.data(), bytes.size());
  if (got < 0) return fail_errno(fmt::format("token-file {}", file));
  std::string token(bytes.data(), static_cast<size_t>(got));
  if (!token.empty() && token.back() == '\n') token.pop_back();
  const bool printable =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!printable || token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes)
    return fail(ErrorCode::kInvalid,
                fmt::format("token-file {}: must hold one line of {} to {} printable characters; "
                            "make one with: openssl rand -hex 32 > {}",
                            file, kMinTokenBytes, kMaxTokenBytes, file));
  return token;
}

}  // namespace farpage::cli
