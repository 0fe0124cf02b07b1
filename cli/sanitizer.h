// Sanitizers that conflict with a preloaded malloc.
#pragma once

#include <string>
#include <string_view>

namespace farpage::cli {

// The name, such as "AddressSanitizer", when the program is built with a sanitizer whose runtime
// has its own malloc and must be the first library, linked dynamically or statically; else "". A
// stripped program with GCC's static runtime is not recognised. LeakSanitizer and UBSan do not
// conflict.
std::string_view sanitizer_of(const std::string& elf_path);

// The same for a library name in LD_PRELOAD.
std::string_view sanitizer_of_library(std::string_view library);

}  // namespace farpage::cli
