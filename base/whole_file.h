// Files that are there whole or not at all, also after a loss of power.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace farpage {

// Replaces the file: the bytes are written to PATH.next, which takes its name when they are on the
// disk. Its mode is 0600. After a failure `path` is as it was, or has the new bytes if only its
// folder could not be written. Waits for others that write files of the folder in this way.
Status write_whole(const std::string& path, std::span<const std::byte> bytes);

}  // namespace farpage
