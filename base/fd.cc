#include "base/fd.h"

#include <fcntl.h>
#include <unistd.h>

namespace farpage {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Fd::~Fd() {
  reset();
}

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Fd> Fd::from_call(int returned, std::string_view context) {
  if (returned < 0) return fail_errno(context);
  return Fd(returned);
}

Result<Fd> Fd::duplicate() const {
  return from_call(::fcntl(fd_, F_DUPFD_CLOEXEC, 0), "dup of a descriptor");
}

}  // namespace farpage
