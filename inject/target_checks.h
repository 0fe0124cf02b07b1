// What is asked before a process is touched: each refusal is one line that names the cure.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "inject/process_files.h"

namespace farpage::inject {

// kUnsupported: what this kernel lacks.
Status check_kernel();

// kConflict: another state of the process is needed. kDenied: a privilege. kUnsupported: never.
Status check_target(const ProcessFiles& process, bool allow_seccomp);

// kConflict if it has locked (mlock) or pinned (io_uring, RDMA) more than `most_bytes` of its
// memory: that stays local, whatever the budget is.
Status check_locked_memory(const ProcessFiles& process, uint64_t most_bytes);

// kConflict if a tracer is attached to the thread: it is named.
Status check_tracer(const ProcessFiles& process, pid_t thread);

// A thread of it is under a seccomp filter, or in strict mode.
bool has_seccomp(const ProcessFiles& process);

}  // namespace farpage::inject
