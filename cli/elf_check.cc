#include "cli/elf_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/fd.h"
#include "cli/sanitizer.h"

namespace farpage::cli {
namespace {

constexpr char kShell[] = "/bin/sh";
constexpr int kMaxInterpreters = 4;  // as in the kernel: an interpreter may be a script

tl::unexpected<Error> refused(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kUnsupported, path + " cannot be given far memory: " + why);
}

// The start of the file, enough for an ELF header or a #! line; empty if it cannot be read.
std::string read_start(int fd) {
  std::array<char, 256> bytes{};
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
  return {bytes.data(), got < 0 ? 0 : static_cast<size_t>(got)};
}

Status check_privileges(const std::string& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail_errno("stat of " + path);
  const bool changes_user = (status.st_mode & S_ISUID) != 0 && status.st_uid != ::geteuid();
  const bool changes_group = (status.st_mode & S_ISGID) != 0 && status.st_gid != ::getegid();
  const bool has_capabilities =
      ::geteuid() != 0 && ::fgetxattr(fd, "security.capability", nullptr, 0) > 0;
  if (changes_user || changes_group || has_capabilities)
    return refused(
        path,
        "it changes its privileges when it starts (setuid, setgid or capabilities), so the dynamic "
        "linker ignores LD_PRELOAD; run farpage as the user that it changes to");
  return {};
}

// Whether it has a dynamic linker, which can preload a library.
Result<bool> is_dynamic(const std::string& path, int fd, const std::string& start) {
  Elf64_Ehdr header;
  if (start.size() < sizeof header) return refused(path, "its ELF header is cut off");
  std::memcpy(&header, start.data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64)
    return refused(path, "it is not a 64-bit x86 program");
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto offset = static_cast<off_t>(header.e_phoff + uint64_t{i} * header.e_phentsize);
    if (::pread(fd, &segment, sizeof segment, offset) != sizeof segment)
      return refused(path, "its program headers are cut off");
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

CheckedProgram check_obstacles(const std::string& path, bool dynamic) {
  if (!dynamic) return {.elf = path, .obstacle = "is statically linked"};
  const std::string sanitizer(sanitizer_of(path));
  if (sanitizer.empty()) return {.elf = path};
  return {.elf = path, .obstacle = "is built with " + sanitizer, .has_sanitizer = true};
}

Result<Fd> open_program(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.valid()) return fd;
  const int sys_errno = errno;
  const ErrorCode code = sys_errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kDenied;
  return tl::unexpected(Error{code, "opening " + path, sys_errno});
}

Result<CheckedProgram> check_at_depth(const std::string& path, int depth) {
  FARPAGE_TRY(fd, open_program(path));
  const std::string start = read_start(fd.get());
  if (start.starts_with(ELFMAG)) {
    FARPAGE_TRY_VOID(check_privileges(path, fd.get()));
    FARPAGE_TRY(dynamic, is_dynamic(path, fd.get(), start));
    return check_obstacles(path, dynamic);
  }
  if (depth == kMaxInterpreters) return refused(path, "too many interpreters in a row");
  if (!start.starts_with("#!")) {
    FARPAGE_TRY(shell, check_at_depth(kShell, depth + 1));
    shell.needs_shell = true;
    return shell;
  }
  std::istringstream line(start.substr(2, start.find('\n') - 2));
  std::string interpreter;
  std::string argument;
  line >> interpreter >> argument;
  // env(1) only searches for the real interpreter.
  if (interpreter.ends_with("/env") && !argument.empty() && argument.front() != '-') {
    FARPAGE_TRY(found, find_program(argument));
    FARPAGE_TRY(program, check_at_depth(found, depth + 1));
    program.by_env = found;
    return program;
  }
  return check_at_depth(interpreter, depth + 1);
}

// 0 when execve would accept the file, else its errno.
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  return S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0 ? 0 : EACCES;
}

}  // namespace

Result<std::string> find_program(const std::string& command) {
  if (command.find('/') != std::string::npos) {
    const int problem = why_not_executable(command);
    if (problem == 0) return command;
    if (problem == ENOENT) return fail(ErrorCode::kNotFound, command + " does not exist");
    return fail(ErrorCode::kDenied, command + " is not a file that can be executed");
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/bin:/bin");
  std::string denied;
  for (std::string directory; !command.empty() && std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + command;
    const int problem = why_not_executable(candidate);
    if (problem == 0) return candidate;
    if (problem == EACCES && denied.empty()) denied = candidate;
  }
  if (!denied.empty())
    return fail(ErrorCode::kDenied, denied + " is not a file that can be executed");
  return fail(ErrorCode::kNotFound, command + " is not in PATH");
}

Result<CheckedProgram> check_program(const std::string& path) {
  return check_at_depth(path, 0);
}

}  // namespace farpage::cli
