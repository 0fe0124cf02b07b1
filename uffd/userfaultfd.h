// Userfaultfd: owns one userfaultfd descriptor; the ioctls with their errno rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/result.h"
#include "uffd/address_space.h"
#include "uffd/extent_map.h"

struct uffd_msg;
struct uffdio_copy;

namespace farpage::uffd {

// Features that are requested from the kernel. kRequired is necessary to start; kWanted is used if
// it is offered.
struct Features {
  uint64_t required = 0;
  uint64_t wanted = 0;
};
Features pager_features();
// Where nobody unmaps or moves a part of the registered memory.
Features eventless_features();
// For a program that runs already, with an agent of ours in it: all events, and pages that are
// moved (Linux 6.8).
Features attach_features();
// For faults that the faulting thread resolves in its signal handler, without messages.
Features sigbus_features();
// For a mapping of a memfd that other processes map, too (shared_window.h).
Features shared_features();

// Threads: any. All calls are thin wrappers of one ioctl each.
class Userfaultfd {
 public:
  // A new descriptor for this process: /dev/userfaultfd first, then the system call. kDenied names
  // the ways to get the privilege; kUnsupported names the missing features. `user_mode_only` needs
  // no privilege, but read(2) and the like into a missing page fail with EFAULT.
  static Result<Userfaultfd> create(const Features& features, bool user_mode_only = false);
  // A descriptor that another process opened, with the features that its UFFDIO_API granted.
  static Userfaultfd adopt(Fd fd, uint64_t features) { return {std::move(fd), features}; }

  // Whether this descriptor of this process is a userfaultfd.
  static bool is_one(int descriptor);
  // What UFFDIO_API has granted on a descriptor of this process; nullopt: it was not called, or
  // cannot be known.
  static std::optional<uint64_t> features_of(int descriptor);
  // A descriptor of unknown kind, from a process that is not trusted. kInvalid: it is no
  // userfaultfd, or UFFDIO_API was not called on it. Sets O_NONBLOCK.
  static Result<Userfaultfd> adopt_sent(Fd descriptor);

  // A descriptor that another process has opened, and on which nobody has called UFFDIO_API yet.
  // kUnsupported names what this kernel lacks; kDenied: fork events need a privilege.
  static Result<Userfaultfd> enable(Fd fd, const Features& features);

  int fd() const { return fd_.get(); }
  Fd release() && { return std::move(fd_); }
  void close() { fd_.reset(); }
  uint64_t features() const { return features_; }
  bool has_poison() const;

  // MISSING and WP.
  Status register_range(uint64_t address, uint64_t bytes);
  // Pages can be moved there from now on. It has no faults: an absent page is zeros.
  Status register_for_moves(uint64_t address, uint64_t bytes);
  // The same and MINOR: of a shared mapping of a memfd.
  Status register_shared_range(uint64_t address, uint64_t bytes);
  Status unregister_range(uint64_t address, uint64_t bytes);

  size_t read(std::span<uffd_msg> messages);

  // The descriptor that a fork event brings; nullopt: another message.
  std::optional<Userfaultfd> child_of(const uffd_msg& message) const;

  Outcome copy(uint64_t to, const void* from, uint64_t bytes, Protection protection);
  // One page, of this size, with the argument in memory of the caller's choice, into which the
  // kernel writes what became of it.
  Outcome copy_page(uint64_t to, const void* from, uint64_t page_bytes, uffdio_copy& argument);
  ZeroResult zero(uint64_t address, uint64_t bytes, ZeroFrames frames);
  // Maps one page that is in the cache of the memfd, and wakes who waits for it. nullopt: it is not
  // there (any more), and nobody was woken.
  std::optional<Outcome> map_cached(uint64_t address, Protection protection);
  // Whether all of the range is in one anonymous mapping that is registered with a userfaultfd:
  // kDone, else kUnmapped. Changes nothing. kRetry: an event is unread.
  Outcome find_registered(uint64_t address, uint64_t bytes) const;
  Outcome write_protect(uint64_t address, uint64_t bytes, bool on) const;
  Outcome poison(uint64_t address, uint64_t bytes);
  void wake(uint64_t address, uint64_t bytes);

 private:
  Userfaultfd(Fd fd, uint64_t features) : fd_(std::move(fd)), features_(features) {}
  Fd fd_;
  uint64_t features_ = 0;
};

// One kernel message as an event of these extents. nullopt: it concerns none of them, or was not
// requested.
std::optional<Event> decode(const uffd_msg& message, const ExtentMap& extents);

}  // namespace farpage::uffd
