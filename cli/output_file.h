// Files that a subcommand writes at its end.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// Whether the file of this option can be written, before something runs in vain. "" is no file. It
// is not opened: the reader of a FIFO would see its end.
Status check_output(const char* option, const std::string& path);

// Nothing for "".
Status write_output(const char* option, const std::string& path, const std::string& text);

}  // namespace farpage::cli
