// PageWrites: the WRITEs of one thread of pages of an image, to every replica.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "image/image_links.h"
#include "pager/links/link_port.h"
#include "pager/links/posting.h"

namespace farpage::image {

// Threads: the owner of the port. Invariant: a WRITE is done when every replica has acknowledged
// it; one that is not after `patience` is a failure of all.
class PageWrites {
 public:
  static constexpr size_t kWrites = 64;
  using OnDone = std::function<void(uint64_t token)>;

  PageWrites(ImageLinks& links, pager::LinkPort& port, Nanoseconds patience)
      : links_(links), port_(port), patience_(patience) {}

  // For one more start(), to the most replicas.
  bool has_room() const { return busy_ + coordinator::kMaxReplicas <= kWrites; }
  size_t outstanding() const { return busy_; }
  uint64_t written_bytes() const { return written_bytes_; }

  // Writes `bytes`, a part of the port's buffer, to the slot and those behind it: in one slab,
  // which is leased. `token` is told once for each start().
  void start(const pager::LeaseMap& leases, uint32_t slot, std::span<std::byte> bytes,
             uint64_t token);
  // Posts, takes completions, calls `done`. kUnavailable, kTimedOut: a replica has lost the slab,
  // or did not acknowledge.
  Status progress(const OnDone& done);
  // The same, and waits briefly for a completion, or for a channel.
  Status wait_a_little(const OnDone& done);

 private:
  enum class Step : uint8_t { kFree, kQueued, kOnWire };
  struct Write {
    Step step = Step::kFree;
    const pager::LeaseMap* leases = nullptr;
    const pager::ReplicaLease* replica = nullptr;
    uint32_t slot = 0;
    std::span<std::byte> bytes;
    uint64_t token = 0;
    Instant since{0};
  };

  void post_queued();
  void post_gathered();
  Status complete(const rdma::Completion& completion, const OnDone& done);
  bool is_last_of(uint64_t token) const;
  Status check_patience() const;

  ImageLinks& links_;
  pager::LinkPort& port_;
  const Nanoseconds patience_;
  std::array<Write, kWrites> writes_{};
  pager::Posting<kWrites> posting_{port_};
  size_t busy_ = 0;
  size_t queued_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace farpage::image
