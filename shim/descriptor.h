// Numbers of the shim's own descriptors.
#pragma once

namespace farpage::shim {

// Moves a descriptor to a high number (close-on-exec), so that the program gets the numbers it
// would get without the shim. Returns `fd` itself if it cannot be moved.
int move_out_of_the_way(int fd);

}  // namespace farpage::shim
