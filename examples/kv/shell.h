// An interactive store: one command a line.
#pragma once

#include <istream>
#include <ostream>

#include "kv/store.h"

namespace kv {

// put KEY VALUE [TTL_MS]; get KEY; delete KEY; stats. Until the end of input; one reply a line.
void run_shell(Store& store, std::istream& in, std::ostream& out);

}  // namespace kv
