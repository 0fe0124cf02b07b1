// Decides which malloc a program uses. Two must never be mixed: passing a block of one to the
// free() of the other crashes the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace farpage::cli {

// Whether the program has its own malloc: the ELF file defines it, or is linked to a library known
// to define it (jemalloc, tcmalloc, mimalloc and others). False for unreadable files.
bool brings_allocator(const std::string& elf_path);

// The entries of a LD_PRELOAD list, separated by colons and spaces.
std::vector<std::string> preload_entries(const std::string& list);

// LD_PRELOAD of the target: first the shim, then the user's entries, then `allocator` unless the
// program or the user has its own.
std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator);

}  // namespace farpage::cli
