#include "cli/node_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/host.h"
#include "coordinator/api_json.h"

namespace farpage::cli {
namespace {

// At most `limit` bytes.
Result<std::string> read_all(const Fd& file, const std::string& path, size_t limit) {
  std::string text(limit, '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) return fail_errno("reading " + path);
  text.resize(static_cast<size_t>(got));
  return text;
}

// Durable when it returns: a machine that loses power keeps its identity.
Status write_all(const Fd& file, const std::string& path, const std::string& directory,
                 const std::string& text) {
  const ssize_t written = ::pwrite(file.get(), text.data(), text.size(), 0);
  if (written != static_cast<ssize_t>(text.size()) || ::fsync(file.get()) != 0)
    return fail_errno("writing " + path);
  FARPAGE_TRY(folder, Fd::from_call(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                    "opening " + directory));
  if (::fsync(folder.get()) != 0) return fail_errno("writing " + directory);
  return {};
}

}  // namespace

Result<NodeIdentity> load_identity(const std::string& directory, const std::string& name) {
  if (directory.empty()) return NodeIdentity{};
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("--state-dir: making " + directory);
  const std::string path = directory + "/" + name + ".id";
  FARPAGE_TRY(file,
              Fd::from_call(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
                            "--state-dir: opening " + path));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno("--state-dir: locking " + path);
    return fail(ErrorCode::kConflict,
                fmt::format("--state-dir: {} is used by a running node of this host: give this one "
                            "another name with --name",
                            path));
  }
  FARPAGE_TRY(text, read_all(file, path, coordinator::kIdentityDigits + 2));
  if (text.empty()) {
    text = fmt::format("{:016x}{:016x}\n", random_u64(), random_u64());
    FARPAGE_TRY_VOID(write_all(file, path, directory, text));
  }
  if (text.ends_with('\n')) text.pop_back();
  if (!coordinator::is_identity(text))
    return fail(
        ErrorCode::kInvalid,
        fmt::format("--state-dir: {} is no identity of a node: remove it, and the node is a "
                    "new one",
                    path));
  return NodeIdentity{std::move(text), std::move(file)};
}

}  // namespace farpage::cli
