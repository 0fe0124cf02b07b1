// The protocol between the shim inside a target and the pager outside.
//
// Plain structs without any library: the shim is loaded into foreign programs and depends only on
// libc. Both sides must be of the same build; `version` rejects other pairs.
//
// 1. The shim connects to the unix socket (SOCK_SEQPACKET) named by FARPAGE_HANDOVER. It
//    sends Hello with two descriptors (the userfaultfd, then a memfd that holds the AgentRing) and
//    waits for Welcome. The pager checks the peer's credentials: the same user or root.
// 2. Requests of the shim (Request, answered by Reply) use the same socket, one at a time. A pager
//    that takes a dead one's place may answer a request once more: the shim ignores a Reply to an
//    earlier one.
// 3. fork() with UFFD_FEATURE_EVENT_FORK: kForkBegin carries one end of a socket pair. The child
//    inherits the other end, sends Hello on it with one descriptor (its own ring), and gets Welcome
//    with one descriptor: its userfaultfd, which the kernel gave to the pager. From then on it is a
//    target like any other, and this is its socket.
// 4. Commands of the pager go through the AgentRing to the agent thread in the target, because only
//    the target can execute them on its memory (another process cannot MADV_DONTNEED: EINVAL).
//    After its start the agent sends kLifeline with one end of a socket pair.
// 5. A program that was not started with far memory has no shim: `farpage attach` injects an agent
//    (inject/), and sends Hello and requests in its place. The staging area of that agent is the
//    window; the mappings of the program are extents.
// 6. A child that such a program forks has a userfaultfd, which the kernel gave to the pager, and
// no
//    agent. `farpage attach` connects and sends AskChildren instead of Hello. It gets Welcome, then
//    one AgentlessChild for each such process with one descriptor, its userfaultfd, and the end of
//    the stream. Then it injects an agent, which finds out which of these is that of its process,
//    and hands that process over as in 5, with Hello::child.
// 7. `farpage resize` connects to the same socket and sends Resize instead of Hello. It gets
//    Welcome, then one ResizedProcess for each process that has a pager, and the end of the stream.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
#include <atomic>
#endif

namespace farpage::uffd::handover {

inline constexpr uint32_t kMagic = 0x66617270;          // "farp"
inline constexpr uint32_t kResizeMagic = 0x66617273;    // "fars"
inline constexpr uint32_t kChildrenMagic = 0x66617263;  // "farc"
inline constexpr uint32_t kVersion = 10;

// Environment of the target, set by `farpage run`.
inline constexpr char kSocketVariable[] = "FARPAGE_HANDOVER";         // path of the socket
inline constexpr char kWindowVariable[] = "FARPAGE_WINDOW_BYTES";     // decimal
inline constexpr char kMinimumVariable[] = "FARPAGE_MMAP_MIN_BYTES";  // decimal
inline constexpr char kForkVariable[] = "FARPAGE_FORK";  // kForkShare, or anything else
inline constexpr char kForkShare[] = "share";

// The window: one contiguous, page-aligned range of the target's address space, reserved and
// registered (MISSING and WP) once. Page p of the region is the page at window_address + p * 4096,
// without a lookup. What the program places elsewhere becomes far by kAddExtent, and has page
// numbers behind those of the window.
struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t window_address = 0;
  uint64_t window_bytes = 0;
  uint64_t features = 0;  // UFFD_FEATURE_* that UFFDIO_API granted
  uint64_t ring_bytes = 0;
  int32_t pid = 0;
  // Not 0: this is not the target, but who has injected an agent into that process (5 above), and
  // wants so many bytes for its extents.
  int32_t attached_pid = 0;
  uint64_t extent_bytes = 0;
  // Not 0: AgentlessChild::number of that process. The window is the staging area of its agent, and
  // its extents are those that it has already.
  uint64_t child = 0;
  char program[64] = {};  // basename of the program, for the log
};

struct Welcome {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t status = 0;     // 0 or an errno
  char reason[200] = {};  // for stderr when status is not 0
};

// A new budget of local memory for every process of a `farpage run`, including future ones.
struct Resize {
  uint32_t magic = kResizeMagic;
  uint32_t version = kVersion;
  uint64_t local_bytes = 0;
};

struct ResizedProcess {
  uint32_t magic = kResizeMagic;
  int32_t pid = 0;
  uint64_t before_bytes = 0;
  uint64_t after_bytes = 0;
  char program[64] = {};
};

// Which forked children of attached programs have no agent?
struct AskChildren {
  uint32_t magic = kChildrenMagic;
  uint32_t version = kVersion;
};

struct AgentlessChild {
  uint32_t magic = kChildrenMagic;
  uint32_t unused = 0;
  uint64_t number = 0;    // of no other target of this pager and its successors
  uint64_t features = 0;  // of its userfaultfd
  int64_t age_ns = 0;     // since the fork, or since a successor of the pager has found it
};

enum class RequestKind : uint32_t {
  // The target discards the contents of [address, address + bytes): reads return zeros from now on.
  // The shim calls MADV_DONTNEED itself after the reply. madvise(DONTNEED, FREE), munmap,
  // MAP_FIXED.
  kDiscard = 1,
  // fork() is about to be called. Status 0: the child's copy will be complete, or (3 above) the
  // pager serves it; eviction is paused until kForkDone. Otherwise EAGAIN: refuse the fork.
  kForkBegin = 2,
  // The fork is over. bytes: 0 if it failed, otherwise the length of the window.
  kForkDone = 3,
  // Evict [address, address + bytes) soon / fetch it soon. Hints: status is always 0.
  kColdHint = 4,
  kWillNeedHint = 5,
  // madvise(NORMAL, RANDOM, SEQUENTIAL): what to prefetch there. Hints, as above.
  kNormalAccess = 6,
  kRandomAccess = 7,
  kSequentialAccess = 8,
  // mlock: nothing of the range is evicted until kUnpin. ENOMEM: too much of the budget would be
  // pinned, and nothing was. The shim calls mlock itself after the reply.
  kPin = 9,
  kUnpin = 10,
  // [address, address + bytes), outside of the window, is far memory from now on: an extent. The
  // shim registers it with the userfaultfd after the reply. Of an attached process: the
  // pager registers it, and takes what could be; what is an extent there already stays as it is.
  // ENOMEM: it stays local.
  kAddExtent = 11,
  // It is none any more: its contents are discarded, and the shim unmaps it after the reply.
  kRemoveExtent = 12,
  // One descriptor, which the pager keeps open until the target's memory is gone. When the pager
  // dies, the kernel closes it, and the other end has the target killed: its faults would wait
  // forever. Sent by the agent, beside the other requests, and without a reply.
  kLifeline = 13,
  // Nothing touches the window any more: the target ends, though its process lives (libfarpage). No
  // reply: the pager closes the connection when it has left this memory.
  kLeave = 14,
  // What is present of [address, address + bytes) is far memory from now on, and is evicted until
  // the budget is kept. Of an attached process: after kAddExtent.
  kAdoptPresent = 15,
  // Every page is brought back, and stays; EIO: some could not be. Of an attached process: after
  // this its memory can be unregistered, and kLeave follows.
  kBringBack = 16,
};

struct Request {
  uint32_t magic = kMagic;
  RequestKind kind = RequestKind::kDiscard;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t number = 0;  // of this connection's requests, from 1 on; 0: no reply is wanted
};

struct Reply {
  uint32_t magic = kMagic;
  int32_t status = 0;
  uint64_t number = 0;  // the request's
};

#ifdef __cplusplus

enum class CommandKind : uint32_t {
  kDrop = 1,  // MADV_DONTNEED the range (MADV_DONTNEED_LOCKED where it is mlocked)
  kPoison =
      2,  // kernels without UFFDIO_POISON: map an empty memfd over it, so that an access is SIGBUS

  // The others are for an injected agent alone (inject/agent_code.h). A move takes the page itself,
  // not a copy: it is refused while somebody has it pinned. At most kMaxMovedPages.
  kMoveOut = 3,   // from the range to the staging pages from `staging_page` on; wakes nobody
  kMoveBack = 4,  // from there to the range, and wakes who waits for its pages
  // Pages that a relative has too become the target's own, as by a write of the same value; an
  // absent one is faulted in, as by a write of the program.
  kUnshare = 5,
  // The agent gives back its staging area and its descriptors, and ends. The staging area is
  // registered no more. No command may follow.
  kEnd = 6,
};

// Of a move: as many as `kept` has bits.
inline constexpr uint32_t kMaxMovedPages = 64;

struct Command {
  uint64_t address = 0;
  uint32_t pages = 0;
  CommandKind kind = CommandKind::kDrop;
  // Set by the agent before it moves `tail`: 0 or an errno; of several, the first. kMoveOut and
  // kMoveBack: EAGAIN: an event of this address space has not been read, and the pages from the
  // first kept one on were not tried. EBUSY: pinned, or shared with a relative (kUnshare). ENOENT:
  // absent. EEXIST: there is a page at the destination.
  int32_t result = 0;
  uint32_t staging_page = 0;  // index in the staging area
  uint64_t kept = 0;          // bit i: page i of a move has stayed where it was
  // kMoveOut: which of its pages are hashed, if they have moved (bits), and the agent's answer:
  // their hashes in their order (uffd/page_hash.h).
  uint64_t hashed = 0;
  uint64_t hash = 0;
};

inline constexpr char kAgentName[] = "farpage-agent";  // of the thread

inline constexpr uint32_t kRingCommands = 2048;  // power of two

// Single producer (the pager, under its own lock), single consumer (the agent). head and tail count
// commands since the start; entry i is commands[i % kRingCommands].
// Waiting: the agent sleeps on `head` after setting agent_sleeps = 1; the producer stores head,
// then wakes if agent_sleeps was 1. For tail and pager_sleeps the roles are swapped. Both use
// shared futexes (no FUTEX_PRIVATE_FLAG) and check again after setting their flag (sequentially
// consistent), so no wake-up is lost.
struct AgentRing {
  alignas(64) std::atomic<uint32_t> head{0};
  std::atomic<uint32_t> agent_sleeps{0};
  alignas(64) std::atomic<uint32_t> tail{0};
  std::atomic<uint32_t> pager_sleeps{0};
  std::atomic<int32_t> agent_thread{0};  // its id, as the target sees it
  alignas(64) Command commands[kRingCommands];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

#endif

}  // namespace farpage::uffd::handover
