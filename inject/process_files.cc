#include "inject/process_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/maps_line.h"
#include "base/pidfd.h"
#include "base/text.h"

namespace farpage::inject {
namespace {

std::string without_line_end(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Result<ProcessFiles> ProcessFiles::open(pid_t pid) {
  const auto none = [&] {
    return fail(ErrorCode::kNotFound, fmt::format("there is no process {}: check the id", pid));
  };
  if (pid <= 0) return none();
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const int sys_errno = errno;
    // Also of a process that is just being forgotten.
    if (sys_errno != EINVAL && sys_errno != ENOENT && sys_errno != ESRCH)
      return fail_errno("pidfd_open", sys_errno);
    if (::access(fmt::format("/proc/{}/status", pid).c_str(), F_OK) != 0) return none();
    return fail(ErrorCode::kInvalid,
                fmt::format("{} is the id of a thread: name the process that it is of", pid));
  }
  Fd directory(::open(fmt::format("/proc/{}", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return none();
  ProcessFiles files(pid, std::move(pidfd), std::move(directory));
  // Alive still, so the directory is not that of another process.
  if (!files.alive()) return fail(ErrorCode::kNotFound, fmt::format("process {} has ended", pid));
  return files;
}

bool ProcessFiles::alive() const {
  return !has_ended(pidfd_.get());
}

Result<Fd> ProcessFiles::open_file(const std::string& path, int flags) const {
  Fd fd(::openat(directory_.get(), path.c_str(), flags | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(fmt::format("/proc/{}/{}", pid_, path));
  return fd;
}

Result<std::string> ProcessFiles::read(const std::string& path) const {
  FARPAGE_TRY(file, open_file(path, O_RDONLY));
  constexpr size_t kChunkBytes = 64 << 10;
  std::string text;
  while (true) {
    const size_t had = text.size();
    text.resize(had + kChunkBytes);
    const ssize_t got = ::read(file.get(), text.data() + had, kChunkBytes);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(fmt::format("/proc/{}/{}", pid_, path));
    if (got == 0) return text;
  }
}

Result<std::vector<pid_t>> ProcessFiles::threads() const {
  FARPAGE_TRY(fd, open_file("task", O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::fdopendir(fd.release()), ::closedir);
  if (!tasks) return fail_errno(fmt::format("/proc/{}/task", pid_));
  std::vector<pid_t> ids;
  while (const dirent* entry = ::readdir(tasks.get()))
    if (const auto id = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)); id > 0)
      ids.push_back(id);
  return ids;
}

std::optional<std::string> ProcessFiles::status_field(const std::string& path,
                                                      std::string_view name) const {
  const Result<std::string> text = read(path);
  if (!text) return std::nullopt;
  std::optional<std::string> value;
  for_each_line(*text, [&](std::string_view line) {
    if (value || !line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':')
      return;
    line.remove_prefix(name.size() + 1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    value.emplace(line);
  });
  return value;
}

std::string ProcessFiles::name() const {
  const Result<std::string> text = read("comm");
  return text ? printable(without_line_end(*text)) : "?";
}

std::string ProcessFiles::described() const {
  return fmt::format("process {} ({})", pid_, name());
}

std::string process_name(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name = "?";
  std::getline(file, name);
  return printable(name);
}

}  // namespace farpage::inject
