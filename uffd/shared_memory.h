// What a process that shares memory has sent: checked, since nothing of it is believed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>

#include "base/result.h"
#include "uffd/shared_window.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {

// A part of a file as a process says that it has mapped it.
struct SharedClaim {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  size_t file = 0;
};

// kUnsupported: this kernel lacks what SharedWindow needs (Linux 6.6).
Status check_kernel_for_shared();

// A memfd or a file in a tmpfs, of whole pages, from which holes can be made: kInvalid else, and
// for what was opened for reading only.
Result<SharedFile> adopt_shared_file(Fd descriptor);

// kInvalid: it is none, or was opened with events, or without the features that are needed.
Result<Userfaultfd> adopt_shared_userfaultfd(Fd descriptor);

// May other processes' pages be mapped already?
enum class Touched : uint8_t { kAllowed, kRefused };

// Of the process: each claim is mapped so, shared, registered with a userfaultfd (MISSING, MINOR
// and WP) and not inherited by children; and it maps these files nowhere else. kInvalid names what
// is not so, and the cure; kDenied: its mappings cannot be read.
Status check_claims(pid_t process, std::span<const SharedFile> files,
                    std::span<const SharedClaim> claims, Touched touched);

// Does the process map some of these files between two addresses? False: it has ended, too.
bool maps_between(pid_t process, std::span<const SharedFile> files, uint64_t begin, uint64_t end);

}  // namespace farpage::uffd
