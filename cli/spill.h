// The spill file of an engine (--spill), and whether a program fits at all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/state_store.h"
#include "cli/run_settings.h"
#include "rdma/file/file.h"

namespace farpage::cli {

struct SpillSettings {
  std::string folder;
  uint64_t bytes = 0;
};
// "FOLDER,size=20G". kInvalid: the text names what is allowed.
Result<SpillSettings> parse_spill(const std::string& text);

// That of the dead predecessor, if `state` has one; else a new one, which is noted there.
Result<std::unique_ptr<rdma::OpenFile>> open_spill(const SpillSettings& settings,
                                                   uint64_t slab_bytes, StateStore* state);

// What there is for a program.
struct Room {
  uint64_t local_bytes = 0;
  uint64_t free_bytes = 0;  // on nodes, for pages with all their replicas
  uint64_t spill_bytes = 0;
  uint64_t all() const { return local_bytes + free_bytes + spill_bytes; }
};
// The least of the limits that the program has: of its address space and its data (getrlimit(2)),
// and --window if it was given. nullopt: none is known.
std::optional<uint64_t> limit_of_program(const RunSettings& settings);
// One line; empty: it fits.
std::string room_warning(const Room& room, uint64_t limit_bytes);
// Prints that line on standard error. Asks the coordinator, if there is a limit; where that does
// not answer it says nothing.
void warn_of_room(const RunSettings& settings);

}  // namespace farpage::cli
