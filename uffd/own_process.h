// The address space of this process: a window that it reserves and registers itself.
#pragma once

#include <memory>

#include "uffd/address_space.h"

namespace farpage::uffd {

// A readable and writable window of `pages` pages in this process. Its memory is at
// address_of(PageIndex{0}). `user_mode_only`: see Userfaultfd::create.
Result<std::unique_ptr<AddressSpace>> create_own_window(uint64_t pages,
                                                        bool user_mode_only = false);

// The same, without messages: the faulting thread gets SIGBUS (UFFD_FEATURE_SIGBUS), and its
// handler resolves the fault. System calls on a missing or protected page fail with EFAULT. Needs
// no privilege; read() of an absent page fails.
Result<std::unique_ptr<AddressSpace>> create_own_sigbus_window(uint64_t pages);

}  // namespace farpage::uffd
