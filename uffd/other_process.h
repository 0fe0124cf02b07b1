// The address space of another process, which handed its userfaultfd over (handover_server.h).
#pragma once

#include <memory>

#include "uffd/address_space.h"
#include "uffd/handover_server.h"

namespace farpage::uffd {

// Takes the descriptor and the ring out of `target`; the control socket stays with the caller.
// `more_pages`: numbers for extents other than the window.
Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target, uint64_t more_pages);

// Does its userfaultfd deliver fork events?
bool tells_of_forks(const HandedOver& target);

// The child of an adopted window (event Forked) has sent its Hello: its pages can be read and
// dropped from now on. Takes the ring out of `child`.
void bind_child(AddressSpace& space, HandedOver& child);

}  // namespace farpage::uffd
