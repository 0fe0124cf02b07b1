#include "rdma/tcp/file_operations.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace farpage::rdma::tcp {
namespace {

constexpr size_t kWriteBytes = kMaxOperationBytes;
constexpr size_t kReadBytes = size_t{2} * kMaxOperationBytes;  // one more when all but full

tl::unexpected<Error> disk_failed(const char* what, const KeyTable::Use& range, ssize_t moved,
                                  int problem) {
  std::string text = fmt::format("the disk has failed a {} of {} bytes at offset {}", what,
                                 range.bytes().size(), range.offset());
  if (moved < 0) return fail_errno(text, problem);
  return fail(ErrorCode::kIo, text + ": it has moved a part");
}

// All of `memory`: pread(2) or pwrite(2).
template <typename Call>
Status move_all(const char* what, const KeyTable::Use& range, std::span<std::byte> memory,
                Call call) {
  for (size_t done = 0; done < memory.size();) {
    const ssize_t moved = call(range.file(), memory.data() + done, memory.size() - done,
                               static_cast<off_t>(range.offset() + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0 || static_cast<size_t>(moved) % kPageBytes != 0)
      return disk_failed(what, range, moved, errno);
    done += static_cast<size_t>(moved);
  }
  return {};
}

}  // namespace

bool FileOperations::can_serve(const KeyTable::Use& range) {
  return range.offset() % kPageBytes == 0 && range.bytes().size() % kPageBytes == 0;
}

Result<std::span<std::byte>> FileOperations::memory() {
  if (!memory_.valid()) {
    FARPAGE_TRY(made, Mapping::anonymous(kWriteBytes + kReadBytes));
    memory_ = std::move(made);
  }
  return memory_.bytes();
}

Result<std::span<std::byte>> FileOperations::read(const KeyTable::Use& range) {
  FARPAGE_TRY(all, memory());
  const std::span<std::byte> place = all.subspan(kWriteBytes + read_bytes_, range.bytes().size());
  FARPAGE_TRY_VOID(move_all("READ", range, place, ::pread));
  read_bytes_ += place.size();
  return place;
}

Result<std::span<std::byte>> FileOperations::gathered() {
  FARPAGE_TRY(all, memory());
  return all.first(kWriteBytes);
}

Status FileOperations::write(const KeyTable::Use& range) {
  FARPAGE_TRY(all, memory());
  return move_all("WRITE", range, all.first(range.bytes().size()), ::pwrite);
}

}  // namespace farpage::rdma::tcp
