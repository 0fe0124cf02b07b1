// Where the agent's mappings lie: far from those of the program.
//
// The kernel places a mapping in the first gap, from above, that it fits in. That may be one that
// the program has made and counts on: it has moved memory away from there, and moves it back
// (MREMAP_FIXED, MAP_FIXED), onto the agent.
#pragma once

#include <cstdint>
#include <string_view>

namespace farpage::inject {

// An address some 64 GiB from all mappings; the highest, as the kernel's own choice is: some
// programs accept no other ones (ThreadSanitizer). 0: there is none. `maps`: the text of
// /proc/PID/maps.
uint64_t far_place(std::string_view maps);

}  // namespace farpage::inject
