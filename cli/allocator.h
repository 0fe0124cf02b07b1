// Decides which malloc a program will use, so that two are never mixed: passing a block of one to
// the free() of the other would crash the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::cli {

// The program has its own malloc: the ELF file defines it, or is linked to a library that is known
// to define it (jemalloc, tcmalloc, mimalloc and others). Unreadable files: false.
bool brings_allocator(const std::string& elf_path);

// The entries of a LD_PRELOAD list, separated by colons and spaces.
std::vector<std::string> preload_entries(const std::string& list);

// LD_PRELOAD of the target: the shim before everything, what the user preloads, and `allocator`
// unless the program or the user brings one.
std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator);

}  // namespace farpage::cli
