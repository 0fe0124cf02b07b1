// Which malloc a program will have, so that two of them are never mixed: a block of one that comes
// to the free() of the other is the end of the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::cli {

// The program has a malloc of its own: the ELF file defines it, or is linked to a library that is
// known to (jemalloc, tcmalloc, mimalloc and others). Unreadable files: false.
bool brings_allocator(const std::string& elf_path);

// The entries of a LD_PRELOAD list, by colons and blanks.
std::vector<std::string> preload_entries(const std::string& list);

// LD_PRELOAD of the target: the shim before everything, what the user preloads, and `allocator`
// unless the program or the user brings one.
std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator);

}  // namespace farpage::cli
