#include "base/mapping.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/fd.h"

namespace farpage {

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<Mapping> Mapping::anonymous(size_t bytes, bool prefault) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (prefault ? MAP_POPULATE : 0);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) return fail_errno("mmap of anonymous memory");
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Result<Mapping> Mapping::shared(int fd, size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return fail_errno("mmap of a shared descriptor");
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Mapping Mapping::adopt(void* address, size_t bytes) {
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Result<Fd> create_memfd(const char* name, size_t bytes, bool huge) {
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | (21U << MFD_HUGE_SHIFT) : 0U);
  FARPAGE_TRY(fd, Fd::from_call(::memfd_create(name, flags), "memfd_create"));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return fail_errno("ftruncate of a memfd");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("sealing a memfd");
  return fd;
}

}  // namespace farpage
