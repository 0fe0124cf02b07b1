#include "cli/node_name.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/host.h"
#include "base/log.h"

namespace farpage::cli {
namespace {

constexpr int kMaxNodesOfAHost = 64;

// kConflict: another process holds it.
Result<Fd> lock_name(const std::string& name, const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("making " + directory);
  const std::string path = directory + "/" + name + ".lock";
  FARPAGE_TRY(file,
              Fd::from_call(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
                            "opening " + path));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno == EWOULDBLOCK) return fail(ErrorCode::kConflict, path + " is held by another node");
  return fail_errno("locking " + path);
}

}  // namespace

Result<NodeName> claim_node_name(const std::string& wanted, const std::string& directory) {
  if (!wanted.empty()) return NodeName{wanted, Fd()};
  const std::string host = host_name();
  for (int i = 1; i <= kMaxNodesOfAHost; ++i) {
    const std::string name = i == 1 ? host : fmt::format("{}-{}", host, i);
    Result<Fd> lock = lock_name(name, directory);
    if (lock) return NodeName{name, std::move(*lock)};
    if (lock.error().code == ErrorCode::kConflict) continue;
    log::info("node name_not_locked name={} reason=\"{}\"", name, lock.error().message());
    return NodeName{name, Fd()};
  }
  return fail(ErrorCode::kConflict,
              fmt::format("--name: {} nodes of this host run without one: name this one",
                          kMaxNodesOfAHost));
}

}  // namespace farpage::cli
