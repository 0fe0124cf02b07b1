// Sanitizers that a preloaded malloc cannot live with.
#pragma once

#include <string>
#include <string_view>

namespace farpage::cli {

// "AddressSanitizer" and the like when the program is built with one whose runtime has a malloc of
// its own and must be the first library, linked dynamically or statically (a stripped program with
// GCC's static runtime is not recognised); else "". LeakSanitizer and UBSan are no obstacle.
std::string_view sanitizer_of(const std::string& elf_path);

// The same of a library by its name, as LD_PRELOAD has it.
std::string_view sanitizer_of_library(std::string_view library);

}  // namespace farpage::cli
