// SharedGroup: the processes that share one memory, from the first that hands it over to the end of
// the last one. A memory is a set of files; a process belongs to the group that has its files.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "pager/engine.h"
#include "serve/served_state.h"
#include "uffd/shared_memory.h"
#include "uffd/shared_window.h"

namespace farpage::share {

// What a process has handed over. Checked.
struct HandedOver {
  Fd socket;
  Fd process;  // pidfd
  pid_t pid = 0;
  std::string program;
  uffd::Userfaultfd userfaultfd;
  std::vector<uffd::SharedFile> files;
  std::vector<uffd::SharedClaim> claims;
};

// Of a memory whose processes have ended.
struct GroupReport {
  std::string program;  // of the first process
  pid_t pid = 0;
  pager::PagerStats stats;
};

// Threads: one.
// Invariants:
//  1. a process is served when `processes` of them have come: before, nothing is answered, and none
//     of their memory leaves;
//  2. a record of the group, and of each process, is there before it is served, so that a successor
//     finds it.
class SharedGroup {
 public:
  struct Host {
    pager::Engine& engine;
    const serve::ServedState& state;
    uint64_t local_bytes = 0;
    size_t processes = 1;
  };
  struct Peer {
    uint32_t member = 0;  // of the window
    Fd process;
    Fd socket;  // invalid: it has been closed
    pid_t pid = 0;
    std::string program;
  };

  static Result<std::unique_ptr<SharedGroup>> create(const Host& host,
                                                     std::vector<uffd::SharedFile> files);
  // That of a dead engine: this one goes on. Null: that one was about to release it, and this has
  // been done. A failure: the processes cannot be served, and are in `peers`.
  static Result<std::unique_ptr<SharedGroup>> resume(const Host& host, uint64_t number,
                                                     std::vector<Peer>& peers);
  // One that could not be resumed is in no record any more.
  static Status forget(const serve::ServedState& state, uint64_t number);
  // All numbers of groups that a dead engine had.
  static Result<std::vector<uint64_t>> numbers(const serve::ServedState& state);
  ~SharedGroup();

  uint64_t number() const { return number_; }
  // Some of these files are its own; all of them are.
  bool has_any(const std::vector<uffd::SharedFile>& files) const;
  bool has_all(const std::vector<uffd::SharedFile>& files) const;
  // kConflict: one of its own has another size by now.
  Status check_sizes(const std::vector<uffd::SharedFile>& files) const;
  // Has this process handed anything over that lies in [begin, end)?
  bool has_mapped(pid_t pid, uint64_t begin, uint64_t end) const;
  bool is_served() const { return pager_ != nullptr; }
  bool is_late(Instant now) const { return !is_served() && now - began_ > kGathering; }
  std::vector<Peer>& peers() { return peers_; }
  uint64_t pages() const { return window_->pages(); }

  // A further process. The caller has checked its claims.
  Status join(HandedOver& process);
  // When enough have come. A failure: none can be served, and only the end is left.
  Status serve_if_complete();
  // The process has ended, or executed another program.
  void leave(const Peer& peer);
  bool is_alive(const Peer& peer) const { return window_->is_member_alive(peer.member); }
  // All pages are brought back and the registrations end: the processes go on without a pager.
  Status release();
  // Of one that was served.
  GroupReport report() const;

 private:
  static constexpr Seconds kGathering{30};

  SharedGroup(const Host& host, uint64_t number, std::unique_ptr<uffd::SharedWindow> window)
      : host_(host),
        number_(number),
        window_(window.get()),
        owned_(std::move(window)),
        began_(SteadyClock::read()) {}

  std::vector<uffd::SharedMapping> mappings_of(const HandedOver& process) const;
  std::string group_name() const;
  std::string peer_name(uint32_t member) const;
  Status note_group(bool released = false) const;
  Status note_peer(const Peer& peer, int userfaultfd,
                   const std::vector<uffd::SharedMapping>& mappings) const;
  pager::TargetOptions target_options() const;

  const Host host_;
  const uint64_t number_;
  uffd::SharedWindow* const window_;
  std::unique_ptr<uffd::AddressSpace> owned_;  // until the pager has it
  const Instant began_;
  std::vector<Peer> peers_;
  uint32_t next_member_ = 0;
  std::string program_;  // of the first one
  pid_t pid_ = 0;
  std::unique_ptr<pager::Pager> pager_;
};

}  // namespace farpage::share
