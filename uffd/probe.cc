#include "uffd/probe.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {
namespace {

struct NamedFeature {
  uint64_t bit;
  const char* name;
  bool required;
  const char* purpose;
};

constexpr NamedFeature kFeatures[] = {
    {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "WP", true, "write protection: detects modified pages (5.7)"},
    {UFFD_FEATURE_THREAD_ID, "THREAD_ID", false, "prefetch per thread (4.14)"},
    {UFFD_FEATURE_EVENT_UNMAP, "EVENT_UNMAP", false, "munmap calls that bypass the shim (4.11)"},
    {UFFD_FEATURE_EVENT_REMAP, "EVENT_REMAP", false, "mremap calls that bypass the shim (4.11)"},
    {UFFD_FEATURE_POISON, "POISON", false, "SIGBUS for a lost page without a mapping (6.6)"},
};

uint64_t offered_by(const Fd& fd) {
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  return ::ioctl(fd.get(), UFFDIO_API, &api) == 0 ? uint64_t{api.features} : 0;
}

}  // namespace

bool fork_events_allowed() {
  return Userfaultfd::create(
             {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_FORK, .wanted = 0})
      .has_value();
}

KernelReport probe_kernel() {
  KernelReport report;
  uint64_t offered = 0;
  const int flags = O_CLOEXEC | O_NONBLOCK;
  if (const Fd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC)); device.valid()) {
    const Fd fd(::ioctl(device.get(), USERFAULTFD_IOC_NEW, flags));
    report.device_works = fd.valid();
    if (fd.valid()) offered = offered_by(fd);
  }
  if (const Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, flags))); fd.valid()) {
    report.system_call_works = true;
    offered |= offered_by(fd);
  } else {
    report.reason = strerrordesc_np(errno);
  }
  if (const Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY)));
      fd.valid()) {
    report.user_mode_works = true;
    offered |= offered_by(fd);
  }
  for (const NamedFeature& feature : kFeatures)
    report.features.push_back(
        {feature.name, (offered & feature.bit) != 0, feature.required, feature.purpose});
  return report;
}

}  // namespace farpage::uffd
