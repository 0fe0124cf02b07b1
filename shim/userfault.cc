#include "shim/userfault.h"

#include <errno.h>
#include <fcntl.h>

#include "shim/report.h"
#include "uffd/kernel_abi.h"

namespace farpage::shim {
namespace {

constexpr uint64_t kRequired = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
constexpr uint64_t kWanted = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_REMAP |
                             UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_POISON;

long open_descriptor() {
  const long device = system_call(SYS_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (!is_error(device)) {
    const long fd =
        system_call(SYS_ioctl, device, USERFAULTFD_IOC_NEW, int{O_CLOEXEC | O_NONBLOCK});
    system_call(SYS_close, device);
    if (!is_error(fd)) {
      return fd;
    }
  }
  return system_call(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
}

int open_or_exit() {
  const long fd = open_descriptor();
  if (fd == -EPERM || fd == -EACCES) {
    Report()
        .text("userfaultfd is not allowed for this user: ")
        .error(fd)
        .text(
            "; run as root, or let the user open /dev/userfaultfd (setfacl -m u:USER:rw), or set "
            "sysctl vm.unprivileged_userfaultfd=1; `farpage doctor` checks it")
        .write_and_exit();
  }
  if (is_error(fd)) {
    Report()
        .text("cannot create a userfaultfd: ")
        .error(fd)
        .text("; this needs Linux 5.14 or newer with CONFIG_USERFAULTFD; see `farpage doctor`")
        .write_and_exit();
  }
  return static_cast<int>(fd);
}

// `offered`: all features of the kernel, whatever was asked for.
long handshake(int fd, uint64_t features, uint64_t* offered) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  const long result = system_call(SYS_ioctl, fd, UFFDIO_API, &api);
  *offered = api.features;
  return result;
}

}  // namespace

bool Userfault::tells_of_forks() const {
  return (features & UFFD_FEATURE_EVENT_FORK) != 0;
}

Userfault open_userfault_or_exit(bool fork_events) {
  // A descriptor takes one UFFDIO_API, and an unknown feature makes it fail: probe on another one.
  const int probe = open_or_exit();
  uint64_t offered = 0;
  const long probed = handshake(probe, 0, &offered);
  system_call(SYS_close, probe);
  if (is_error(probed) || (offered & kRequired) != kRequired) {
    Report()
        .text(
            "this kernel's userfaultfd cannot write-protect pages; Linux 5.14 or newer with "
            "CONFIG_HAVE_ARCH_USERFAULTFD_WP is needed; see `farpage doctor`")
        .write_and_exit();
  }
  Userfault userfault;
  userfault.fd = open_or_exit();
  const uint64_t wanted = kRequired | (kWanted & offered);
  userfault.features = wanted | (fork_events ? offered & UFFD_FEATURE_EVENT_FORK : 0);
  long agreed = handshake(userfault.fd, userfault.features, &offered);
  if (agreed == -EPERM && userfault.features != wanted) {
    system_call(SYS_close, userfault.fd);
    userfault.fd = open_or_exit();
    userfault.features = wanted;
    agreed = handshake(userfault.fd, userfault.features, &offered);
  }
  if (is_error(agreed)) {
    Report().text("the handshake with userfaultfd failed: ").error(agreed).write_and_exit();
  }
  return userfault;
}

long register_span(int userfault_fd, Span span) {
  uffdio_register request{};
  request.range.start = span.begin;
  request.range.len = span.bytes();
  request.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
  return system_call(SYS_ioctl, userfault_fd, UFFDIO_REGISTER, &request);
}

long unregister_span(int userfault_fd, Span span) {
  uffdio_range range{};
  range.start = span.begin;
  range.len = span.bytes();
  return system_call(SYS_ioctl, userfault_fd, UFFDIO_UNREGISTER, &range);
}

}  // namespace farpage::shim
