#include "cli/elf_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/fd.h"

namespace farpage::cli {
namespace {

constexpr int kMaxInterpreters = 4;  // as the kernel: a script's interpreter may be a script

tl::unexpected<Error> refused(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kInvalid, path + " cannot be given far memory: " + why);
}

// The first bytes of the file, enough for an ELF header or a #! line; none if it cannot be read.
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
    return refused(path,
                   "it changes its privileges when it starts (setuid, setgid or capabilities), and "
                   "then the loader ignores LD_PRELOAD; run it as the user it becomes");
  return {};
}

Status check_elf(const std::string& path, int fd, const std::string& start) {
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
    if (segment.p_type == PT_INTERP) return {};
  }
  return refused(path,
                 "it is statically linked, so nothing can be preloaded; use a dynamically linked "
                 "build of it");
}

Result<std::string> check_at_depth(const std::string& path, int depth) {
  FARPAGE_TRY(fd, Fd::from_call(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "opening " + path));
  const std::string start = read_start(fd.get());
  if (start.starts_with(ELFMAG)) {
    FARPAGE_TRY_VOID(check_privileges(path, fd.get()));
    FARPAGE_TRY_VOID(check_elf(path, fd.get(), start));
    return path;
  }
  if (!start.starts_with("#!")) return std::string("/bin/sh");
  if (depth == kMaxInterpreters) return refused(path, "too many interpreters in a row");
  std::istringstream line(start.substr(2, start.find('\n') - 2));
  std::string interpreter;
  std::string argument;
  line >> interpreter >> argument;
  // env(1) is only a way to find the real one.
  if (interpreter.ends_with("/env") && !argument.empty() && argument.front() != '-') {
    FARPAGE_TRY(found, find_program(argument));
    return check_at_depth(found, depth + 1);
  }
  return check_at_depth(interpreter, depth + 1);
}

}  // namespace

Result<std::string> find_program(const std::string& command) {
  const auto executable = [](const std::string& path) {
    struct stat status {};
    return ::access(path.c_str(), X_OK) == 0 && ::stat(path.c_str(), &status) == 0 &&
           S_ISREG(status.st_mode);
  };
  if (command.find('/') != std::string::npos) {
    if (executable(command)) return command;
    return fail(ErrorCode::kNotFound, command + " is not an executable file");
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + command;
    if (executable(candidate)) return candidate;
  }
  return fail(ErrorCode::kNotFound, command + " is not in PATH");
}

Result<std::string> check_program(const std::string& path) {
  return check_at_depth(path, 0);
}

}  // namespace farpage::cli
