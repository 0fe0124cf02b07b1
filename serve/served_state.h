// ServedState: what the serving half of an engine leaves to its successor (serve/holder.h): which
// runs and targets there are, and by which descriptors they are reached. The paging half has its
// own part (pager/succession.h), under the same numbers.
//
// A record is written before what it says is relied upon, and names a descriptor no longer than
// that is open: so a number never means another descriptor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/state_store.h"
#include "pager/options.h"
#include "pager/succession.h"

namespace farpage::serve {

// One program of a `farpage run`.
struct RunRecord {
  std::string program;
  int socket = -1;    // to that farpage run
  int listener = -1;  // for the hand-over
  uint64_t local_bytes = 0;
  pager::ForkMode fork = pager::ForkMode::kRefuse;
  std::optional<int> exit_status;
};

// A process that is served.
struct ServedRecord {
  uint64_t run = 0;
  std::string program;
  int pid = 0;
  uint64_t parent = 0;   // 0: it is no forked child
  uint64_t fork = 0;     // the parent's fork_request by which it came
  bool hello = true;     // false: a child that has not said Hello yet
  bool welcome = false;  // has been sent
  bool forked = false;   // it is, or was, about to fork
  // The request kForkBegin that is not over: 0: none. `may_fork`: the answer, once it is known.
  uint64_t fork_request = 0;
  bool may_fork = false;
  uint64_t child = 0;  // number of the child of that fork, from before it is adopted; 0: none
  int socket = -1;     // -1: closed
  int lifeline = -1;   // -1: none yet
  int child_socket = -1;
  int userfaultfd = -1;
  int ring = -1;
  uint64_t window_address = 0;
  uint64_t window_bytes = 0;
  uint64_t staging_address = 0;  // HandedOver::staging_address
  uint64_t more_pages = 0;
  uint64_t features = 0;
  bool attached = false;  // HandedOver::attached
};

// What a folder above this one keeps, in a form of its own.
struct OtherRecord {
  std::vector<int> descriptors;  // -1: none
  std::string text;
};

// Of a forked child, which has not said Hello yet.
ServedRecord child_record(uint64_t number_of_parent, const ServedRecord& parent, int socket,
                          int userfaultfd);

// In the store of any engine: the binary by which its holder is to go on; empty: none.
Status put_upgrade(StateStore& store, const std::string& binary);
std::string upgrade_in(const StateStore& store);

// Threads: any. The store outlives it.
class ServedState {
 public:
  // Without a store nothing is kept. kUnsupported: the state of a build that cannot be followed.
  static Result<ServedState> create(StateStore* store);

  bool keeps() const { return store_ != nullptr; }
  // When it was made: a process does that first.
  Instant began() const { return began_; }
  // Of a run or a process: never the same twice, in this process and its predecessors.
  uint64_t next_number() const { return succession_.next_number(); }

  Status put_upgrade(const std::string& binary) const;

  // The socket on which `farpage pager` listens; -1: it does not any more.
  Status put_listener(int descriptor) const;
  std::optional<int> listener() const;

  Status put(uint64_t number, const RunRecord& run) const;
  void erase_run(uint64_t number) const;
  Result<std::map<uint64_t, RunRecord>> runs() const;

  Status put(uint64_t number, const ServedRecord& target) const;
  void erase_target(uint64_t number) const;
  Result<std::map<uint64_t, ServedRecord>> targets() const;

  Status put_other(const std::string& name, const OtherRecord& record) const;
  void erase_other(const std::string& name) const;
  Result<std::map<std::string, OtherRecord>> others() const;

  // Memory for what was answered last.
  Result<Mapping> answers(uint64_t number) const;
  // Memory for the extents of a process (uffd/extent_map.h).
  Result<Mapping> extents(uint64_t number) const;

  // All descriptors that the records name.
  Result<std::set<int>> descriptors() const;

 private:
  ServedState(StateStore* store, pager::Succession succession)
      : store_(store), succession_(std::move(succession)) {}

  StateStore* store_;
  pager::Succession succession_;  // numbers and memory, as the paging half has them
  Instant began_ = SteadyClock::read();
};

}  // namespace farpage::serve
