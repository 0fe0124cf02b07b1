#include "image/page_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/strong.h"
#include "coordinator/api.h"

namespace farpage::image {

Result<FileState> FileState::of(const Fd& fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail_errno(path);
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalid, path + " is not a file");
  FileState state;
  state.bytes_ = static_cast<uint64_t>(status.st_size);
  state.changed_ = status.st_mtim;
  return state;
}

bool FileState::is_that_of(const Fd& fd) const {
  struct stat status {};
  return ::fstat(fd.get(), &status) == 0 && static_cast<uint64_t>(status.st_size) == bytes_ &&
         status.st_mtim.tv_sec == changed_.tv_sec && status.st_mtim.tv_nsec == changed_.tv_nsec;
}

Status read_file(const Fd& fd, const std::string& path, uint64_t offset, std::span<std::byte> to) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t got =
        ::pread(fd.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("reading " + path);
    if (got == 0) return fail(ErrorCode::kConflict, path + " has become shorter");
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<FileSource> FileSource::open(const std::string& path) {
  FARPAGE_TRY(fd, Fd::from_call(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "opening " + path));
  FARPAGE_TRY(state, FileState::of(fd, path));
  const uint64_t bytes = state.bytes();
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > coordinator::kMaxImageBytes)
    return fail(ErrorCode::kInvalid,
                fmt::format("{} has {} bytes: the memory of a guest is whole 4 KiB pages, up to 1T",
                            path, bytes));
  return FileSource(std::move(fd), path, state);
}

Result<uint64_t> FileSource::next_data(uint64_t page) const {
  return seek(page, SEEK_DATA);
}

Result<uint64_t> FileSource::end_of_data(uint64_t page) const {
  return seek(page, SEEK_HOLE);
}

Status FileSource::read(uint64_t page, std::span<std::byte> to) const {
  return read_file(fd_, path_, page << kPageShift, to);
}

Result<uint64_t> FileSource::seek(uint64_t page, int what) const {
  const uint64_t pages = bytes() >> kPageShift;
  const off_t found = ::lseek(fd_.get(), static_cast<off_t>(page << kPageShift), what);
  if (found < 0 && errno == ENXIO) return pages;
  if (found < 0) return fail_errno("looking for holes of " + path_);
  // Data may begin and end inside of a page: the whole page counts.
  const auto at = static_cast<uint64_t>(found);
  const uint64_t rounded =
      what == SEEK_DATA ? at >> kPageShift : (at + kPageBytes - 1) >> kPageShift;
  return std::clamp(rounded, page, pages);
}

}  // namespace farpage::image
