#include "base/whole_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fd.h"

namespace farpage {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return fail_errno("write");
    done += static_cast<size_t>(wrote);
  }
  return {};
}

Status write_next(const std::string& next, const std::string& path,
                  std::span<const std::byte> bytes) {
  // What a process that was killed has left may have another owner, or another mode.
  if (::unlink(next.c_str()) != 0 && errno != ENOENT) return fail_errno("removing " + next);
  FARPAGE_TRY(fd, Fd::from_call(::open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
                                "creating " + next));
  FARPAGE_TRY_VOID(write_all(fd.get(), bytes));
  if (::fsync(fd.get()) != 0) return fail_errno("fsync of " + next);
  if (::rename(next.c_str(), path.c_str()) != 0) return fail_errno("renaming " + next);
  return {};
}

}  // namespace

Status write_whole(const std::string& path, std::span<const std::byte> bytes) {
  FARPAGE_TRY(folder,
              Fd::from_call(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                            "the folder of " + path));
  // Others who write this file would remove PATH.next, and rename a part of theirs.
  if (::flock(folder.get(), LOCK_EX) != 0) return fail_errno("locking the folder of " + path);
  const std::string next = path + ".next";
  if (Status written = write_next(next, path, bytes); !written) {
    (void)::unlink(next.c_str());
    return fail_with("writing " + path, written.error());
  }
  if (::fsync(folder.get()) != 0) return fail_errno("fsync of the folder of " + path);
  return {};
}

}  // namespace farpage
