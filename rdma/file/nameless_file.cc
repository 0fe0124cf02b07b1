#include "rdma/file/nameless_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/mapping.h"
#include "base/size.h"
#include "base/strong.h"
#include "rdma/limits.h"

namespace farpage::rdma::file {
namespace {

// The errors of a disk that is as it should be come later, from the operations.
Status check_direct(int descriptor, const std::string& folder) {
  FARPAGE_TRY(page, Mapping::anonymous(kPageBytes));
  const auto whole = static_cast<ssize_t>(kPageBytes);
  if (::pwrite(descriptor, page.data(), kPageBytes, 0) == whole &&
      ::pread(descriptor, page.data(), kPageBytes, 0) == whole)
    return {};
  const int problem = errno;
  if (problem == EINVAL)
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: its file system or disk cannot write single pages of {} bytes past "
                    "the page cache (O_DIRECT): name a folder on another disk",
                    folder, kPageBytes));
  return fail_errno(folder + ": the first page", problem);
}

Result<Fd> make_nameless(const std::string& folder) {
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0) return fail_errno(folder);
  if (!S_ISDIR(facts.st_mode))
    return fail(ErrorCode::kInvalid, folder + ": is no folder: name one on the disk to be used");
  struct statfs file_system {};
  if (::statfs(folder.c_str(), &file_system) != 0) return fail_errno(folder);
  if (file_system.f_type == TMPFS_MAGIC || file_system.f_type == RAMFS_MAGIC)
    return fail(ErrorCode::kUnsupported, folder + ": is memory (tmpfs): name a folder on a disk");
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  int made = ::open(folder.c_str(), kFlags | O_TMPFILE, 0600);
  if (made < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    std::string name = folder + "/farpage-spill-XXXXXX";
    made = ::mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
    if (made >= 0) ::unlink(name.c_str());
  }
  if (made < 0 && errno == EINVAL)
    return fail(ErrorCode::kUnsupported,
                folder +
                    ": its file system cannot bypass the page cache (O_DIRECT): name a folder "
                    "on another one");
  return Fd::from_call(made, folder);
}

uint64_t free_bytes_of(const std::string& folder) {
  struct statfs file_system {};
  if (::statfs(folder.c_str(), &file_system) != 0) return 0;
  return file_system.f_bavail * static_cast<uint64_t>(file_system.f_bsize);
}

tl::unexpected<Error> no_room(const std::string& folder, uint64_t bytes, int problem) {
  return fail(ErrorCode::kExhausted, fmt::format("{}: no room for a file of {}: {} ({} free there)",
                                                 folder, format_size(bytes), std::strerror(problem),
                                                 format_size(free_bytes_of(folder))));
}

Status allocate(int descriptor, const std::string& folder, uint64_t bytes) {
  if (::fallocate(descriptor, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
  const int problem = errno;
  if (problem == ENOSPC || problem == EDQUOT || problem == EFBIG)
    return no_room(folder, bytes, problem);
  if (problem == EOPNOTSUPP)
    return fail(ErrorCode::kUnsupported,
                folder +
                    ": its file system cannot reserve room for a file: name a folder on "
                    "another one");
  return fail_errno(folder, problem);
}

}  // namespace

Status check_free(const std::string& folder, uint64_t bytes) {
  FARPAGE_TRY_VOID(make_nameless(folder));
  if (free_bytes_of(folder) >= bytes) return {};
  return no_room(folder, bytes, ENOSPC);
}

Result<Fd> make_nameless_file(const std::string& folder, uint64_t bytes) {
  FARPAGE_TRY(made, make_nameless(folder));
  FARPAGE_TRY_VOID(allocate(made.get(), folder, bytes));
  FARPAGE_TRY_VOID(check_direct(made.get(), folder));
  return made;
}

Status write_zeros(int descriptor, uint64_t offset, uint64_t bytes) {
  FARPAGE_TRY(zeros, Mapping::anonymous(kMaxOperationBytes));
  const uint64_t end = offset + bytes;
  while (offset < end) {
    const size_t piece = std::min<uint64_t>(zeros.size(), end - offset);
    const ssize_t written = ::pwrite(descriptor, zeros.data(), piece, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno("writing zeros");
    if (written == 0 || static_cast<size_t>(written) % kPageBytes != 0)
      return fail(ErrorCode::kIo, "writing zeros: the disk has taken a part");
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

}  // namespace farpage::rdma::file
