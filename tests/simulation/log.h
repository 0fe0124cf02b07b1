// The product's log in a simulated run.
#pragma once

#include <string_view>

namespace farpage::simulation {

// The run fails when a line with this text is logged. Empty: none.
void forbid_log(std::string_view text);

}  // namespace farpage::simulation
