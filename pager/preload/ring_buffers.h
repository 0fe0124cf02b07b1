// Memory that an io_uring is given for long. The kernel pins its frames and goes past the page
// tables, so these pages must not be evicted; they stay pinned at the pager until they are
// unmapped.
#pragma once

namespace farpage::preload {

// io_uring_register(2). -ENOMEM when the pager will not keep the buffers here.
long register_ring(int ring, unsigned operation, void* argument, unsigned count);

}  // namespace farpage::preload
