#include "cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace farpage::cli {

Status check_output(const char* option, const std::string& path) {
  if (path.empty()) return {};
  std::error_code problem;
  const std::filesystem::file_status file = std::filesystem::status(path, problem);
  const bool is_new = file.type() == std::filesystem::file_type::not_found;
  // The dot: a file in its place is refused, too.
  const std::filesystem::path place =
      is_new ? std::filesystem::path(path).parent_path() / "." : std::filesystem::path(path);
  if (std::filesystem::is_directory(file) ||
      ::faccessat(AT_FDCWD, place.c_str(), W_OK, AT_EACCESS) != 0)
    return fail(ErrorCode::kInvalid, fmt::format("{}: cannot write {}", option, path));
  return {};
}

Status write_output(const char* option, const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kIo, fmt::format("{}: cannot write {}", option, path));
  return {};
}

}  // namespace farpage::cli
