// The address space of this process: a window that it reserves and registers itself.
#pragma once

#include <memory>

#include "base/mapping.h"
#include "uffd/address_space.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {

// Reserved memory of this process that is registered with a userfaultfd, and not mapped in a child
// of fork().
struct RegisteredMemory {
  Userfaultfd userfaultfd;
  Mapping memory;
};
// `user_mode_only`: see Userfaultfd::create.
Result<RegisteredMemory> register_memory(uint64_t pages, const Features& features,
                                         bool user_mode_only = false);

// A readable and writable window of `pages` pages in this process. Its memory is at
// address_of(PageIndex{0}). `user_mode_only`: see Userfaultfd::create.
Result<std::unique_ptr<AddressSpace>> create_own_window(uint64_t pages,
                                                        bool user_mode_only = false);

// The same, without messages: the faulting thread gets SIGBUS (UFFD_FEATURE_SIGBUS), and its
// handler resolves the fault. System calls on a missing or protected page fail with EFAULT. Needs
// no privilege; read() of an absent page fails.
Result<std::unique_ptr<AddressSpace>> create_own_sigbus_window(uint64_t pages);

}  // namespace farpage::uffd
