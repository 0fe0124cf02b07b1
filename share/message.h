// The messages between a process that hands shared memory over and `farpage share`: one JSON text a
// line, one line each way. docs/protocol.md ("Shared memory of a VMM") has them in full.
//
//   [{"base_host_virt_addr": 140062213218304, "size": 134217728, "offset": 0, "memory": 0}]
//
// with descriptors: the userfaultfd, and then the memfds, which "memory" counts from 0. The names
// are those of Firecracker's message for snapshots (snapshot/wire.h), where it has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "uffd/shared_memory.h"

namespace farpage::share {

inline constexpr size_t kMaxMessageBytes = size_t{64} << 10;
inline constexpr size_t kMaxRegions = 64;
inline constexpr size_t kMaxMemories = 8;

// One to kMaxRegions regions of whole 4 KiB pages, of so many memories that were sent; neither
// their addresses nor their places in a memory overlap. kInvalid names the field; kUnsupported:
// pages of another size.
Result<std::vector<uffd::SharedClaim>> decode_regions(std::string_view line, size_t memories);

// The answers, each with its newline.
std::string accepted_line(uint64_t pages, size_t processes);
std::string released_line();
std::string error_line(const Error& error);

}  // namespace farpage::share
