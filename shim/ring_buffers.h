// Memory registered with an io_uring. The kernel pins its frames and bypasses the page tables, so
// these pages must not be evicted: the pager keeps them pinned until they are unmapped.
#pragma once

namespace farpage::shim {

// io_uring_register(2). -ENOMEM if the pager refuses to pin the buffers.
long register_ring(int ring, unsigned operation, void* argument, unsigned count);

}  // namespace farpage::shim
