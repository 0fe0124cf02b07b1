// What the kernel says about an address: a line of /proc/self/maps, read without an allocator.
#pragma once

#include "pager/preload/syscalls.h"

namespace farpage::preload {

struct Mapping {
  Span span;
  int protection = 0;  // PROT_*
  bool anonymous = false;
};

// The mapping that holds the beginning of `span`, together with those of the same kind that follow
// it up to the span's end (the kernel does not always merge them). 0, -EFAULT when there is none,
// or the errno of /proc. Slow (the whole list up to there): for mremap only.
long find_mapping(Span span, Mapping& mapping);

// One line of /proc/<pid>/maps, without its newline. false when it has another form.
bool parse_mapping(const char* line, const char* end, Mapping& mapping);

}  // namespace farpage::preload
