// FarGuests: guests of which a budget stays here (`farpage serve --local`). Each is a target of one
// engine (pager/), whose pages are at first those of an image: a page that the guest has not
// written is dropped and read from the image again, and what it has written goes to a region of its
// own.
//
// A guest is served from the moment of its hand-over on, and nothing of it leaves until an agent of
// ours is in its VMM (inject/), some milliseconds later. One that cannot get an agent is killed:
// its memory could become larger than what is here.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/state_store.h"
#include "coordinator/client.h"
#include "pager/engine.h"
#include "pager/options.h"
#include "rdma/transport.h"
#include "snapshot/image_pages.h"
#include "snapshot/lifeline.h"
#include "snapshot/session.h"
#include "snapshot/snapshot_state.h"
#include "snapshot/wire.h"
#include "uffd/address_space.h"

namespace farpage::snapshot {

// An agent that has been placed in a VMM, and executes what is in its ring (uffd/handover.h).
struct GuestAgent {
  Fd ring;
  uint64_t staging_address = 0;
  Fd lifeline;  // the VMM is killed when nobody has it open any more
};

// Places one. `userfaultfd`: the VMM's, with these features. Blocks for milliseconds, or up to some
// seconds. A failure has changed nothing.
using GiveAgent = std::function<Result<GuestAgent>(pid_t pid, int userfaultfd, uint64_t features,
                                                   const std::vector<GuestRegion>& regions)>;

struct FarOptions {
  pager::PagerOptions pager;  // local_bytes: of each guest
  GiveAgent give_agent;
  uint64_t staging_pages = 0;  // of an agent
};

// What a guest is made of.
struct FarParts {
  uint64_t number = 0;  // of its session
  std::shared_ptr<const ServedImage> served;
  const coordinator::OpenedImage* opened = nullptr;  // for the call
  std::vector<GuestRegion> regions;
  Fd userfaultfd;
  Fd pidfd;
  pid_t pid = 0;
  Fd socket;
  Lifeline lifeline;
};

// How a guest has gone on since the last call of turn().
struct FarChange {
  enum class Kind : uint8_t { kHasAgent, kRefused, kEnded };
  uint64_t number = 0;
  Kind kind = Kind::kHasAgent;
  pid_t pid = 0;
  std::string image;
  std::string text;  // the reason, or what was done
};

// Threads: one, and its own.
class FarGuests {
 public:
  // `group`: the session group of the images. `changed` is called from any thread when turn() has
  // something to do. Client, transports, store and state outlive it.
  static Result<std::unique_ptr<FarGuests>> create(
      FarOptions options, uint32_t group, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore& store,
      const SnapshotState& state, std::function<void()> changed);
  // The VMMs are killed.
  ~FarGuests();

  // Serves it, and writes its record. kUnsupported, kInvalid: this memory, or this image, cannot be
  // served so; kUnavailable: nodes are missing. After a failure it is not served.
  Status begin(FarParts parts);
  // One of a predecessor, as it was.
  Status resume(FarParts parts, const SessionRecord& record);
  // What else the predecessor's engine had is given back.
  void end_succession();

  // The image of some of them has other leases now. After a failure: again.
  Status refresh(const coordinator::OpenedImage& opened);

  // Takes what has changed. A guest that has ended, or was refused, is forgotten.
  std::vector<FarChange> turn();
  // Readable when the VMM has ended; of all guests.
  std::vector<int> pidfds() const;
  size_t size() const { return guests_.size(); }
  // {"resident_pages": .., ..}: sums over the guests, also those that have ended.
  nlohmann::json stats() const;

 private:
  struct Guest;
  struct Totals {
    uint64_t faults = 0, zero = 0, lost = 0, prefetched = 0;
    uint64_t dropped = 0, written = 0;
    void add(const pager::PagerCounts& counts);
  };

  struct Ending {
    std::shared_ptr<std::atomic<bool>> is_over;
    std::jthread thread;
  };

  FarGuests(FarOptions options, const SnapshotState& state, std::function<void()> changed)
      : options_(std::move(options)), state_(state), changed_(std::move(changed)) {}
  Result<std::unique_ptr<uffd::AddressSpace>> space_of(Guest& guest, bool is_new) const;
  static Result<std::shared_ptr<ImagePages>> pages_of(const Guest& guest,
                                                      const uffd::AddressSpace& space);
  pager::TargetOptions target_options(const Guest& guest) const;
  Status serve_new(Guest& guest);
  Status serve_again(FarParts parts, const SessionRecord& record);
  // `patience`: with a former agent, which is about to leave.
  void ask_for_agent(const std::shared_ptr<Guest>& guest, Nanoseconds patience);
  static Status bind(Guest& guest, uffd::AddressSpace& space);
  Status take_agent(Guest& guest, GuestAgent agent) const;
  std::optional<FarChange> change_of(Guest& guest) const;
  void forget(uint64_t number);

  const FarOptions options_;
  const SnapshotState& state_;
  const std::function<void()> changed_;
  std::unique_ptr<pager::Engine> engine_;
  std::map<uint64_t, std::shared_ptr<Guest>> guests_;  // by number
  Totals ended_;
  std::vector<Ending> ending_;  // their regions are given back
};

}  // namespace farpage::snapshot
