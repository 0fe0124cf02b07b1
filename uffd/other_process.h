// The address space of another process, which handed its userfaultfd over (handover_server.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "uffd/address_space.h"
#include "uffd/handover_server.h"

namespace farpage::uffd {

// Takes the descriptor and the ring out of `target`; the control socket stays with the caller.
// `more_pages`: numbers for extents other than the window. `extents`: memory for these, of
// ExtentMap::kKeptBytes: zeros, or what a dead pager has left there.
Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target, uint64_t more_pages,
                                                   Mapping extents);

// A forked child that has not said Hello yet, as a dead pager had it. bind_child() is still to
// come.
Result<std::unique_ptr<AddressSpace>> adopt_child(HandedOver& child, uint64_t more_pages,
                                                  Mapping extents);
// The child of an adopted window, whose event a dead pager has read.
std::unique_ptr<AddressSpace> child_of(AddressSpace& parent, Fd userfaultfd);
// Does the address space of this userfaultfd exist still?
bool address_space_exists(int userfaultfd);
// Before a forked child is served: its extents are in this memory from now on, of
// ExtentMap::kKeptBytes and zeros.
void keep_extents(AddressSpace& space, Mapping extents);

// [begin, end), whole pages.
struct GuestRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};
inline constexpr size_t kGuestEventBytes = kPageBytes;
// The memory of a VMM that has registered these ranges with a userfaultfd of its own, as
// Userfaultfd::adopt_sent() takes it (guest_window.h). bind_child() is still to come, with an agent
// whose staging area has so many pages. `is_new`: the ranges are made far memory; else `extents`
// has them. `events`: kGuestEventBytes, as `extents` zeros, or what a dead pager has left there.
// kUnsupported: its features are not fit for that. kConflict: what that one has read cannot be
// followed.
Result<std::unique_ptr<AddressSpace>> adopt_guest(Fd userfaultfd,
                                                  std::span<const GuestRange> ranges,
                                                  uint64_t staging_pages, bool is_new,
                                                  Mapping extents, Mapping events);

// Of an adopted window: waits until the agent has executed all by which it could change what the
// program has, also if a pager has asked for that which is dead. kTimedOut: call it again.
// kUnavailable: the target is gone.
Status await_agent(AddressSpace& space, Nanoseconds patience);

// Does its userfaultfd, or this one, deliver fork events?
bool tells_of_forks(const HandedOver& target);
bool tells_of_forks(int userfaultfd);

// What UFFDIO_API has granted on its userfaultfd.
uint64_t features_of(const AddressSpace& space);

// The child of an adopted window (event Forked) has sent its Hello: its pages can be read and
// dropped from now on. Takes the ring out of `child`.
void bind_child(AddressSpace& space, HandedOver& child);

}  // namespace farpage::uffd
