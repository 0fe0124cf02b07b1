// Reads mappings from /proc/self/maps, without an allocator.
#pragma once

#include "shim/syscalls.h"

namespace farpage::shim {

struct Mapping {
  Span span;
  int protection = 0;  // PROT_*
  bool anonymous = false;
};

// Finds the mapping that contains the start of `span`, joined with adjacent ones of the same kind
// up to the span's end (the kernel does not always merge them). Returns 0, -EFAULT if there is
// none, or the errno of /proc. Slow (reads all lines up to there): for mremap only.
long find_mapping(Span span, Mapping& mapping);

// Parses one line of /proc/<pid>/maps, without its newline. false if its format differs.
bool parse_mapping(const char* line, const char* end, Mapping& mapping);

}  // namespace farpage::shim
