// The address space of another process, which handed its userfaultfd over (handover_server.h).
#pragma once

#include <memory>

#include "uffd/address_space.h"
#include "uffd/handover_server.h"

namespace farpage::uffd {

// Takes the descriptor and the ring out of `target`; the control socket stays with the caller.
Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target);

}  // namespace farpage::uffd
