// Properties of this host that several folders use.
#pragma once

#include <cstdint>
#include <string>

namespace farpage {

// The kernel's random id of this boot (/proc/sys/kernel/random/boot_id): two processes that read
// the same one share a kernel, so memory can be shared between them. Empty if unreadable.
std::string boot_id();
std::string host_name();

// n random bytes from getrandom(2), as a number.
uint64_t random_u64();
uint32_t random_u32();

// Raises the soft limit of open files to the hard one. Programs started later inherit it, and some
// (select(2)) do not work with a large one.
void raise_descriptor_limit();

}  // namespace farpage
