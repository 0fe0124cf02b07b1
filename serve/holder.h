// Holder: keeps the descriptors of an engine that may be killed, and starts its successor.
//
// The engine runs in a child process that has the holder's descriptor table (clone(2) with
// CLONE_FILES): whatever it opens, or receives with a message or an event, the holder has too, from
// the moment at which it exists. So when the engine is killed nothing is closed: a userfaultfd goes
// on holding faults back, sockets of targets stay connected. The successor is another such child.
// It goes on with what that one has written to the StateStore (docs/adr/0014), and closes what only
// the dead engine needed: all that is in no record, but for what cannot be made again and may have
// arrived without having been noted. That is a userfaultfd, whose close would end a registration,
// or a nameless unix socket, which may be the lifeline of a target.
//
// The holder has no network and no thread, and reads nothing that a target can write. When it is
// killed itself, the kernel kills the engine, and with it the last descriptors go: each target is
// killed through its lifeline (uffd/handover.h, snapshot/lifeline.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/state_store.h"

namespace farpage::serve {

// The engine of one child: returns the exit status of the process. `takes_over`: the state is that
// of an engine that was killed; kCannotTakeOver: it was not touched, another one tries.
using HeldEngine = std::function<int(StateStore& state, bool takes_over)>;
inline constexpr int kCannotTakeOver = 75;  // EX_TEMPFAIL

// The descriptors of a dead engine that its successor needs.
struct KeptDescriptors {
  // Those that the records name.
  std::function<Result<std::set<int>>(StateStore& state)> noted;
  // Beside them what cannot be made again and may have arrived without having been noted:
  // userfaultfds and nameless unix sockets.
  bool and_unnoted = true;
};
// Of engines that leave a ServedState.
KeptDescriptors descriptors_of_programs();

// What happens to signals that end a program.
enum class EndSignals : uint8_t {
  kPassedOn,  // the engine gets them; it is in a process group of its own, without a terminal
  kBlocked,   // by the caller, also in the engine
};

// Runs engines until one ends by itself: then its exit status. 1: engines are killed faster than
// they can start.
// Threads: the caller's is the only one of its process.
Result<int> hold(EndSignals end_signals, const HeldEngine& engine,
                 const KeptDescriptors& kept = descriptors_of_programs());

// Of an engine that is to be replaced by another build, after put_upgrade(). The holder kills it,
// executes that binary in its own place with its own command line, and that goes on with the state.
// If it cannot be executed, an engine of the old build goes on.
void ask_for_upgrade();
// The path of the binary of this process.
std::string own_binary();
// Of a binary that was executed by ask_for_upgrade(): a word that the former one has passed on.
std::optional<std::string> inherited(const char* name);
// Passes a word on to the next one.
void pass_on(const char* name, const std::string& word);

// The open userfaultfds that are not among these.
std::vector<int> userfaultfds_but(const std::set<int>& known);

}  // namespace farpage::serve
