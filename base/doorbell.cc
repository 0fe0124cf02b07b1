#include "base/doorbell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace farpage {

Result<Doorbell> Doorbell::create() {
  FARPAGE_TRY(fd, Fd::from_call(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"));
  return Doorbell(std::move(fd));
}

void Doorbell::ring() const {
  const uint64_t one = 1;
  (void)!::write(fd_.get(), &one, sizeof one);
}

bool Doorbell::wait(Milliseconds timeout) const {
  pollfd poll{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  (void)::poll(&poll, 1, static_cast<int>(timeout.count()));
  uint64_t rings = 0;
  return ::read(fd_.get(), &rings, sizeof rings) == sizeof rings;
}

}  // namespace farpage
