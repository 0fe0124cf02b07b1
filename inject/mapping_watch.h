// MappingWatch: tells when programs may have new memory, by perf_event_open(2): the kernel
// announces each mmap, brk, mprotect and growth by mremap. What goes away is told by the
// userfaultfd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/result.h"

namespace farpage::inject {

// Without the privilege (CAP_PERFMON, or sysctl kernel.perf_event_paranoid <= 0), and when the
// kernel has lost announcements, the answer is "may have changed" too often, never too seldom.
//
// Threads: one at a time.
class MappingWatch {
 public:
  // How often every program may have changed, where nothing is announced, and where all but mremap
  // is.
  static constexpr Nanoseconds kScanInterval = std::chrono::seconds(1);
  static constexpr Nanoseconds kSlowScanInterval = std::chrono::seconds(5);

  // `announced` false: as without the privilege.
  explicit MappingWatch(const Clock& clock, bool announced = true);

  bool announces() const { return !rings_.empty(); }
  // An epoll descriptor, readable when a program, watched or not, has new memory; it is so until
  // the next may_have_changed() of any. -1 if nothing is announced.
  int descriptor() const { return epoll_.get(); }

  void watch(pid_t pid);
  void forget(pid_t pid);
  // Since the last call for that pid, or watch().
  bool may_have_changed(pid_t pid);

 private:
  struct Ring {
    Fd event;
    Mapping memory;
  };
  Status open_rings();
  void drain();
  void drain(Ring& ring);

  const Clock& clock_;
  std::vector<Ring> rings_;  // one a CPU
  Fd epoll_;
  struct Watched {
    bool changed = true;
    Instant last{};
  };
  std::map<pid_t, Watched> watched_;
};

}  // namespace farpage::inject
