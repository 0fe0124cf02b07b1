// <linux/userfaultfd.h> of the build host, completed with definitions of newer kernels: Debian 12
// ships the headers of 6.1. The features of the running kernel are probed at run time (UFFDIO_API,
// errno). Source: include/uapi/linux/userfaultfd.h of Linux 6.6 (POISON, WP_UNPOPULATED).
#pragma once

#include <linux/ioctl.h>
#include <linux/types.h>
#include <linux/userfaultfd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC 0xAA
#define USERFAULTFD_IOC_NEW _IO(USERFAULTFD_IOC, 0x00)
#endif

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#ifndef UFFDIO_POISON
#define _UFFDIO_POISON (0x08)  // NOLINT(bugprone-reserved-identifier): the kernel's name
struct uffdio_poison {
  struct uffdio_range range;
  __u64 mode;
  __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, _UFFDIO_POISON, struct uffdio_poison)
#endif

#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
