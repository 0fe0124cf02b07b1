// Checks at startup for the memory limits that could stop a node from lending later.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace farpage::node {

// Pages that a network card registers are pinned, and pinned pages count against RLIMIT_MEMLOCK
// unless the thread has CAP_IPC_LOCK. Fails with kExhausted and the remedy.
Status check_memlock(uint64_t pinned_bytes);

// Fails with kExhausted if the host does not have that much memory available now (MemAvailable, or
// the free pages of the huge page pool): the kernel would kill a process during allocation.
Status check_available(uint64_t lend_bytes, bool hugepages);

// One field of a text in the form of /proc/meminfo, in bytes ("HugePages_Free" is a bare number);
// nullopt if it is missing.
Result<uint64_t> meminfo_field(const std::string& text, const std::string& field);

}  // namespace farpage::node
