// The interface to the kernel: installs and drops the far pages of one address space.
//
// Far memory is a set of disjoint extents (extent_map.h). Pages are numbered from the start of the
// first one, the window; raw addresses appear only where extents come and go, and in messages. One
// implementation serves memory of this process (own_process.h), the other that of a process which
// handed its userfaultfd over (other_process.h).
// Source of the kernel's rules: Documentation/admin-guide/mm/userfaultfd.rst, ioctl_userfaultfd(2).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/event_order.h"
#include "base/result.h"
#include "base/strong.h"

namespace farpage::uffd {

// `pages` pages from `first` on.
struct PageRun {
  PageIndex first;
  uint32_t pages = 0;
};

enum class FaultKind : uint8_t {
  kMissingRead,
  kMissingWrite,
  kWriteProtected,  // a write to a page that is present and write-protected
};

// ---- events ----

struct Fault {
  PageIndex page;
  FaultKind kind = FaultKind::kMissingRead;
  uint32_t thread = 0;  // thread id in the target, 0 where the kernel does not tell
};
struct Unmapped {  // these pages no longer have memory of ours
  std::vector<PageRun> runs;
};
struct Moved {  // an mremap(2) that cannot be followed moved these pages
  std::vector<PageRun> runs;
};
struct Relocated {  // an mremap(2) moved these pages: they have other addresses from now on
  std::vector<PageRun> runs;
};
// A fault on memory that is registered with our descriptor but is in no extent (after Moved).
// It has already been answered with SIGBUS, never with zeros.
struct StrayFault {
  uint64_t address = 0;
};
// The process has forked. The child has the same window, and we serve its missing pages from the
// start. The forking thread continues when this event is read.
struct Forked {
  std::unique_ptr<class AddressSpace> child;
};
using Event = std::variant<Fault, Unmapped, Moved, Relocated, StrayFault, Forked>;

// ---- outcomes ----

enum class Outcome : uint8_t {
  kDone,
  kAlreadyPresent,  // EEXIST: another install was first; waiters were woken
  kRetry,        // an event is queued: read all events, then retry. Or the target's memory control
                 // group is full: the kernel reclaims or kills there meanwhile
  kUnmapped,     // ENOENT and no event is queued: the target unmapped or replaced that memory
  kProcessGone,  // ESRCH: the target has exited or called exec
};
std::string_view to_string(Outcome outcome);

enum class Protection : uint8_t { kWritable, kWriteProtected };

// What zero() installs: the kernel's shared zero page, which gets a frame at the first write, or a
// frame for each page, which is cheaper if the page is about to be written.
enum class ZeroFrames : uint8_t { kShared, kOwn };
inline constexpr uint32_t kMaxZeroRun = 128;  // pages of one zero()

// The result of zero(): the first `pages` of the run are installed; `outcome` is why it stopped
// there. kDone: all are installed.
struct ZeroResult {
  uint32_t pages = 0;
  Outcome outcome = Outcome::kDone;
};

inline constexpr size_t kMaxDropRuns = 512;

inline constexpr uint32_t kMaxDropRun = 64;  // pages of one, where there is an event order

// How one run of drop() ended.
struct DropResult {
  int sys_errno = 0;  // not 0: all of it stays; the errno of the target's madvise(2)
  uint64_t kept = 0;  // else: which of its pages stay (bits): they were in use
  uint64_t busy = 0;  // and of which of these a device or a relative has the frame

  bool keeps(uint32_t page) const { return kept != 0 && (kept >> page & 1) != 0; }
  bool is_busy(uint32_t page) const { return busy != 0 && (busy >> page & 1) != 0; }
};

// Threads: any thread may make any call at any time, except drop() and those around it, from
// prepare_drop() to can_drop(): one thread at a time (the evictor). No call waits for a drop() of
// another thread.
// Invariants:
//  1. install, zero and poison never replace a page that is present.
//  2. install and zero wake the threads that wait for the pages they placed, and for a page that
//     was present. install skips present pages; after kRetry a run may be installed in part: retry
//     the whole run. zero stops at a present page.
//  3. A run that crosses extents or mappings is kUnmapped for install, which then places nothing;
//  zero
//     ends before the second extent. One that crosses mappings is kUnmapped for zero, and on older
//     kernels (6.1) for protect and unprotect: retry page by page.
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // All page numbers are below this.
  virtual uint64_t pages() const = 0;
  // The page's address in the target, for messages.
  virtual uint64_t address_of(PageIndex page) const = 0;

  // The pages between two page-aligned addresses, in the order of their addresses. Not on the path
  // of a fault.
  virtual std::vector<PageRun> runs_in(uint64_t begin, uint64_t end) const = 0;
  // [begin, end) is an extent from now on, with numbers of its own; its faults are events as soon
  // as it is registered. Where there is an event order, in a section: it is registered, and those
  // parts of it are extents that could be. kConflict: a part of it is one already. kExhausted: too
  // many. kUnavailable: an event is queued, or the process has ended.
  virtual Status add_extent(uint64_t begin, uint64_t end) = 0;
  // Ranges of extents of which the target has no memory: a forked child, of what its parent had
  // given up at the fork, and not told. In a section that reads. kUnavailable: an event is queued.
  virtual Result<std::vector<std::pair<uint64_t, uint64_t>>> extents_without_memory() {
    return std::vector<std::pair<uint64_t, uint64_t>>();
  }
  // It is none any more; the window stays. No call for a page of it is under way.
  virtual void remove_extent(uint64_t begin, uint64_t end) = 0;

  // Stores the queued events, at most out.size(); never blocks.
  virtual size_t read_events(std::span<Event> out) = 0;
  // Becomes readable when read_events() would return something.
  virtual int event_descriptor() const = 0;

  // Places whole pages from `bytes`, starting at `first`. One call places several pages.
  virtual Outcome install(PageIndex first, std::span<const std::byte> bytes,
                          Protection protection) = 0;
  // Places zeros in at most kMaxZeroRun pages by one call.
  virtual ZeroResult zero(PageRun run, ZeroFrames frames) = 0;
  // From here on the next write to each present page of the run is a kWriteProtected fault.
  virtual Outcome protect(PageRun run) = 0;
  // The opposite; wakes the writers.
  virtual Outcome unprotect(PageRun run) = 0;
  // Reads present pages into out[i * 4096], also those that the program has made PROT_NONE
  // (other_process.h). If a page is absent after all, this is a fault of the target like any other
  // and blocks the caller until a fault worker serves it: never call it from one.
  virtual Status read(std::span<const PageIndex> present, std::span<std::byte> out) = 0;
  // The same for pages that the caller is about to drop().
  virtual Status copy_out(std::span<const PageIndex> present, std::span<std::byte> out) {
    return read(present, out);
  }
  // Returns the frames of at most kMaxDropRuns runs to the system. results.size() == runs.size().
  // kTimedOut: it goes on, and await_drop() gives the results: the target itself drops its pages,
  // and may be stopped. Other failures: the target is gone.
  virtual Status drop(std::span<const PageRun> runs, std::span<DropResult> results,
                      Nanoseconds patience) = 0;
  virtual Status await_drop(std::span<DropResult> results, Nanoseconds patience) = 0;
  // Before the caller's pages count as being dropped, and after it has applied the results. Where
  // there is an event order this is a section of it, so few pages should be dropped in it, and
  // drop() never times out. kTimedOut: what was asked of the target before is not over.
  virtual Status prepare_drop(Nanoseconds /*patience*/) { return {}; }
  // True: messages were taken meanwhile, and the section has become one that reads.
  virtual bool end_drop() { return false; }
  // After the last end_drop() for some time: the frames of what has left since the last call are
  // returned, where drop() alone does not do that. Does not wait.
  virtual void free_dropped() {}
  // False: prepare_drop() has failed, and would do so now: what it needs of the target is not done
  // (it is stopped, by a debugger, say).
  virtual bool can_drop() { return true; }
  // That was so for some time. Threads: any.
  virtual bool cannot_drop_for_long() { return false; }
  // The thread of another process that executes drop(), so that callers can set its priority; 0:
  // there is none, or it is not known yet.
  virtual pid_t dropping_thread() { return 0; }
  // Makes each access to the run end in SIGBUS; wakes its waiters. May return before it is done.
  virtual Status poison(PageRun run) = 0;
  // Asks the target to write to this page what is there, so that it is no relative's too; does not
  // wait. Where there is an event order a page that is shared cannot be dropped.
  virtual void make_own(PageIndex /*page*/) {}
  // Is this thread of the target one of ours? Its faults must not wait for room.
  virtual bool is_own_thread(uint32_t /*thread*/) { return false; }
  // Has the page been given up so lately that the kernel may be about to take it?
  virtual bool was_given_up_lately(PageIndex /*page*/) { return false; }
  // Messages that were taken from the kernel wait for read_events().
  virtual bool has_messages() { return false; }
  // What read_events() has returned last is applied: in the same section of the order, which this
  // ends.
  virtual void end_reading() {}
  // Wakes threads that wait at memory that is in no extent.
  virtual void wake_strays() {}
  // Where events alone tell what the program does to its mappings: read_events() and the
  // application of what it returns are one section of this order, all other calls that change pages
  // are in sections of the other kind. Null: requests of the shim tell it beforehand.
  virtual EventOrder* event_order() { return nullptr; }
  // Calls `found` with the runs of pages that are present in the target. For memory that was there
  // before it became an extent.
  virtual Status find_present(PageRun /*run*/, const std::function<void(PageRun)>& /*found*/) {
    return fail(ErrorCode::kUnsupported, "this memory is far from its first page on");
  }
  // True while an unread event (fork, munmap, mremap) exists whose call may already have changed
  // the address space.
  virtual bool event_pending() = 0;
  // The address space still exists: its process has neither exited nor called exec. Slow (a system
  // call). Once this is false, no call here has an effect any more.
  virtual bool alive() = 0;
  // Wakes the threads that wait for these pages; they retry.
  virtual void wake(PageRun run) = 0;
};

}  // namespace farpage::uffd
