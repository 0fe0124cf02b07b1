// Which userfaultfd features this kernel offers to this user, for `farpage doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farpage::uffd {

struct FeatureReport {
  std::string name;
  bool present = false;
  bool required = false;
  std::string purpose;
};

struct KernelReport {
  bool device_works = false;       // /dev/userfaultfd can be opened by this user
  bool system_call_works = false;  // userfaultfd(2), kernel-mode faults included
  bool user_mode_works = false;    // userfaultfd(2) with UFFD_USER_MODE_ONLY
  std::string reason;              // why the first two do not work
  std::vector<FeatureReport> features;
};

// May this user receive fork events (UFFD_FEATURE_EVENT_FORK: CAP_SYS_PTRACE)?
bool fork_events_allowed();

// Opens and closes descriptors; changes nothing.
KernelReport probe_kernel();

}  // namespace farpage::uffd
