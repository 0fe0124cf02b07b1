#include "cli/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "uffd/resize_call.h"

namespace farpage::cli {
namespace {

constexpr char kSocketName[] = "/handover";
constexpr char kAttachedName[] = "attached-";
constexpr char kNameOfAll[] = "farpage-run-";
constexpr int kMaxAncestors = 64;
constexpr int kMaxTries = 16;

std::string runtime_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && ::access(runtime, W_OK) == 0 ? runtime : "/tmp";
}

std::string name_of_run(pid_t pid) {
  return fmt::format("{}{}-", kNameOfAll, pid);
}

struct ProcessStatus {
  pid_t parent = 0;
  uid_t user = 0;
};

std::optional<ProcessStatus> status_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  if (!file) return std::nullopt;
  ProcessStatus status;
  for (std::string word; file >> word;) {
    if (word == "PPid:") file >> status.parent;
    if (word == "Uid:") file >> status.user;
  }
  return status;
}

// In /tmp another user may have created the name.
bool is_directory_of(uid_t user, const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user;
}

// An exclusive lock, held until the descriptor is closed. kNotFound: the directory was removed, or
// another process holds the lock.
Result<Fd> lock_directory(const std::string& path) {
  const int opened = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0 && errno == ENOENT) return fail(ErrorCode::kNotFound, path + " is gone");
  FARPAGE_TRY(directory, Fd::from_call(opened, "opening " + path));
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return fail(ErrorCode::kNotFound, path + " is in use");
    return fail_errno("locking " + path);
  }
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return fail_errno("looking at " + path);
  if (status.st_nlink == 0) return fail(ErrorCode::kNotFound, path + " is gone");
  return directory;
}

// Removes only the sockets of a run: a directory with other files is kept.
void remove_directory(const std::string& path) {
  (void)::unlink((path + kSocketName).c_str());
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
    if (entry.path().filename().string().starts_with(kAttachedName))
      (void)::unlink(entry.path().c_str());
  (void)::rmdir(path.c_str());
}

void remove_left_behind() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(runtime_directory(), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!entry->path().filename().string().starts_with(kNameOfAll) ||
        !is_directory_of(::getuid(), path))
      continue;
    const Result<Fd> lock = lock_directory(path);
    if (lock) remove_directory(path);
  }
}

// The directories whose name begins so, of this user or of `user`, whose environment may differ
// from ours.
std::vector<std::filesystem::path> run_directories(std::string_view name, uid_t user) {
  std::vector<std::filesystem::path> directories;
  for (const std::string& place :
       {runtime_directory(), fmt::format("/run/user/{}", user), std::string("/tmp")}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(place, ignored))
      if (entry.path().filename().string().starts_with(name) &&
          (is_directory_of(user, entry.path()) || is_directory_of(::geteuid(), entry.path())))
        directories.push_back(entry.path());
  }
  return directories;
}

// Whose name is farpage-run-PID-XXXXXX.
pid_t run_of_directory(const std::filesystem::path& directory) {
  return std::atoi(directory.filename().string().c_str() + sizeof kNameOfAll - 1);
}

// kNotFound: this process is no `farpage run`.
Result<Fd> connect_to_this(pid_t pid, uid_t user) {
  Result<Fd> none = fail(ErrorCode::kNotFound, fmt::format("process {} is not a farpage run", pid));
  for (const std::filesystem::path& directory : run_directories(name_of_run(pid), user)) {
    Result<Fd> socket = uffd::connect_to_pager(directory.string() + kSocketName, pid);
    if (socket) return socket;
    // A socket without a listener belonged to a run that was killed.
    if (socket.error().code != ErrorCode::kNotFound) none = std::move(socket);
  }
  return none;
}

}  // namespace

Result<RunDirectory> RunDirectory::create() {
  remove_left_behind();
  // Another process may remove the new directory as a leftover before it is locked.
  for (int tries = 0;; ++tries) {
    std::string path = runtime_directory() + "/" + name_of_run(::getpid()) + "XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return fail_errno("making a directory in " + path);
    Result<Fd> lock = lock_directory(path);
    if (lock) return RunDirectory(std::move(path), std::move(*lock));
    if (lock.error().code == ErrorCode::kNotFound && tries < kMaxTries) continue;
    remove_directory(path);
    return tl::unexpected(std::move(lock.error()));
  }
}

RunDirectory::~RunDirectory() {
  if (!path_.empty()) remove_directory(path_);
}

std::string RunDirectory::socket_path() const {
  return path_ + kSocketName;
}

std::string RunDirectory::attached_path(pid_t pid) const {
  return fmt::format("{}/{}{}", path_, kAttachedName, pid);
}

Result<std::string> find_attached(pid_t pid) {
  const std::optional<ProcessStatus> status = status_of(pid);
  if (!status) return fail(ErrorCode::kNotFound, fmt::format("there is no process {}", pid));
  for (const std::filesystem::path& directory : run_directories(kNameOfAll, status->user)) {
    std::string path = fmt::format("{}/{}{}", directory.string(), kAttachedName, pid);
    if (::access(path.c_str(), F_OK) != 0) continue;
    if (!lock_directory(directory.string())) return path;  // its owner lives
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("no farpage attach is attached to process {}", pid));
}

Result<Fd> connect_to_run(pid_t pid) {
  pid_t above = pid;
  for (int i = 0; i < kMaxAncestors && above > 0; ++i) {
    const std::optional<ProcessStatus> status = status_of(above);
    if (!status) break;
    const Result<std::string> attached = find_attached(above);
    const pid_t run =
        attached ? run_of_directory(std::filesystem::path(*attached).parent_path()) : above;
    Result<Fd> socket = connect_to_this(run, attached ? ::geteuid() : status->user);
    if (socket || socket.error().code != ErrorCode::kNotFound) return socket;
    above = status->parent;
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("no farpage run with pid {}, and none that has started it", pid));
}

}  // namespace farpage::cli
