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

// Where the dynamic linker looks for a library that is named without a directory.
struct LibraryPlaces {
  std::vector<std::string> directories;  // LD_LIBRARY_PATH and its own
  std::string cache = "/etc/ld.so.cache";

  static LibraryPlaces of_this_host();
};

// The words that --allocator accepts beside a path.
inline constexpr char kAutomaticAllocator[] = "auto";
inline constexpr char kNoAllocator[] = "none";

// The library that serves `malloc` of a program under --allocator=`choice`: for LD_PRELOAD, so it
// is a name that the dynamic linker finds in `places`, or a path. Empty for kNoAllocator, and for
// kAutomaticAllocator when no allocator is installed. kInvalid: no such choice, or the file of a
// path does not define malloc. kNotFound: it is not installed.
Result<std::string> allocator_library(const std::string& choice, const LibraryPlaces& places);

// The package that contains the library of kAutomaticAllocator.
std::string allocator_package();

// LD_PRELOAD of the target: first the shim, then the user's entries, then `allocator` unless it is
// empty, or the program or the user has its own.
std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator);

}  // namespace farpage::cli
