// SnapshotState: what a snapshot pager leaves to its successor when it is killed at any moment
// (serve/holder.h): where VMMs connect, which guests there are, and which images they are restored
// from. A record is written before what it says is relied upon, and names a descriptor no longer
// than that is open.
//
// A VMM that has connected, and is no session yet, is in no record: its message stays in its socket
// until the session has ended, and a successor finds the socket by the path that it was accepted
// at.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "base/state_store.h"
#include "coordinator/api.h"
#include "pager/succession.h"
#include "snapshot/lifeline.h"
#include "snapshot/wire.h"

namespace farpage::snapshot {

// Of the form of all that is kept, also of memory that is used in place (Session, PageMap), and of
// what a pager keeps there: a build with another number cannot go on with it.
inline constexpr uint64_t kStateVersion = 2'000 + pager::kStateVersion;

struct ListenerRecord {
  int descriptor = -1;  // -1: closed, but VMMs that were accepted there may not be sessions yet
  std::string path;
  std::string image;  // empty: it takes requests
};

struct SessionRecord {
  std::string image;
  int pid = 0;
  int pidfd = -1;
  int userfaultfd = -1;
  int socket = -1;
  std::array<int, Lifeline::kDescriptors> lifeline{-1, -1, -1};
  std::vector<GuestRegion> regions;
  // Only of one with a budget (far_guests.h): its number in the engine, and its agent.
  uint64_t target = 0;     // 0: of the others
  bool is_served = false;  // the engine knows the target
  int ring = -1;           // -1: it has none yet
  int agent_lifeline = -1;
  uint64_t staging_address = 0;
};

// Threads: any. The store outlives it.
class SnapshotState {
 public:
  // kUnsupported: the state of a build that cannot be followed.
  static Result<SnapshotState> create(StateStore& store);

  const pager::Succession& succession() const { return succession_; }
  // The predecessor's name as a reader of images; else this one, which is kept.
  Result<std::string> reader(const std::string& name) const;

  // By the number of each, never the same twice.
  uint64_t next_listener() const { return succession_.next_number(); }
  Status put_listener(uint64_t number, const ListenerRecord& listener) const;
  Result<std::map<uint64_t, ListenerRecord>> listeners() const;
  // Nobody is accepted any more.
  Status put_stopping() const;
  bool is_stopping() const;

  // With their keys.
  Status put_image(const coordinator::OpenedImage& image) const;
  Result<std::vector<coordinator::OpenedImage>> images() const;
  // For the map of an image. What is in it counts once the image is put.
  Result<Mapping> map_memory(const coordinator::OpenedImage& image, size_t bytes) const;

  // From 1.
  Result<uint64_t> next_session() const;
  Status put_session(uint64_t number, const SessionRecord& session) const;
  // Its memory is dropped, too.
  void erase_session(uint64_t number) const;
  Result<std::map<uint64_t, SessionRecord>> sessions() const;
  Result<Mapping> session_memory(uint64_t number, size_t bytes) const;
  // For the events of one with a budget.
  Result<Mapping> event_memory(uint64_t number, size_t bytes) const;
  // For the notes of threads that place pages.
  Result<Mapping> notes(size_t bytes) const;

  // Connected sockets that no session has, which were accepted at these paths.
  Result<std::vector<int>> accepted_at(const std::string& path) const;

  // All that a successor needs.
  Result<std::set<int>> descriptors() const;

 private:
  SnapshotState(StateStore& store, pager::Succession succession)
      : store_(&store), succession_(std::move(succession)) {}

  StateStore* store_;
  pager::Succession succession_;
};

}  // namespace farpage::snapshot
