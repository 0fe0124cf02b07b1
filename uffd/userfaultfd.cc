#include "uffd/userfaultfd.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "uffd/kernel_abi.h"

namespace farpage::uffd {
namespace {

Result<Fd> open_descriptor(bool user_mode_only) {
  const int flags = O_CLOEXEC | O_NONBLOCK;
  if (!user_mode_only) {
    const Fd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.valid()) {
      Fd fd(::ioctl(device.get(), USERFAULTFD_IOC_NEW, flags));
      if (fd.valid()) return fd;
    }
  }
  Fd fd(static_cast<int>(
      ::syscall(SYS_userfaultfd, flags | (user_mode_only ? UFFD_USER_MODE_ONLY : 0))));
  if (fd.valid()) return fd;
  if (errno == EPERM) {
    return fail(
        ErrorCode::kDenied,
        "userfaultfd is not allowed for this user: run as root or with CAP_SYS_PTRACE, give "
        "the user access to /dev/userfaultfd, or set sysctl vm.unprivileged_userfaultfd=1");
  }
  if (errno == ENOSYS)
    return fail(ErrorCode::kUnsupported, "this kernel was built without userfaultfd");
  return fail_errno("userfaultfd");
}

// The range ioctls report errors in errno; a multi-page one may have done a part.
Outcome outcome_of_errno(int sys_errno, const char* call) {
  switch (sys_errno) {
    case EAGAIN:
    // The target's memory control group is full. The kernel reclaims or kills there, as it would if
    // the target had touched fresh memory.
    case ENOMEM:
      return Outcome::kRetry;
    case EEXIST:
      return Outcome::kAlreadyPresent;
    case ENOENT:
      return Outcome::kUnmapped;
    case ESRCH:
      return Outcome::kProcessGone;
    // EINVAL: the range is not (any more) one registered mapping. EFAULT: part of it is unmapped.
    case EINVAL:
    case EFAULT:
      return Outcome::kUnmapped;
    default:
      break;
  }
  FARPAGE_CHECK(false, "%s failed with errno %d, which no rule covers", call, sys_errno);
}

Status register_with(int fd, uint64_t address, uint64_t bytes, uint64_t mode) {
  uffdio_register request{};
  request.range = {.start = address, .len = bytes};
  request.mode = mode;
  if (::ioctl(fd, UFFDIO_REGISTER, &request) != 0) return fail_errno("UFFDIO_REGISTER");
  return {};
}

}  // namespace

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kAlreadyPresent:
      return "already present";
    case Outcome::kRetry:
      return "retry";
    case Outcome::kUnmapped:
      return "unmapped";
    case Outcome::kProcessGone:
      return "process gone";
  }
  return "unknown";
}

Features pager_features() {
  // No UFFD_FEATURE_EVENT_REMOVE: the evictor's own MADV_DONTNEED would block on its own event. See
  // docs/adr/0001-no-remove-events.md.
  return {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP,
          .wanted = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                    UFFD_FEATURE_POISON};
}

Features eventless_features() {
  return {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP,
          .wanted = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_POISON};
}

Features attach_features() {
  // EVENT_REMOVE, too: no shim tells what the program gives up.
  return {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_THREAD_ID |
                      UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
                      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_POISON |
                      UFFD_FEATURE_MOVE,
          .wanted = 0};
}

Features sigbus_features() {
  // No events either: nothing reads the descriptor, and munmap would block forever.
  return {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS,
          .wanted = UFFD_FEATURE_POISON};
}

Features shared_features() {
  // No events: nobody may wait for a message to be read while it changes the memory of others.
  return {.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM |
                      UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
          .wanted = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_POISON};
}

Result<Userfaultfd> Userfaultfd::create(const Features& features, bool user_mode_only) {
  // UFFDIO_API may be called once per descriptor, so a separate one queries the features.
  uint64_t offered = 0;
  {
    FARPAGE_TRY(probe, open_descriptor(user_mode_only));
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    if (::ioctl(probe.get(), UFFDIO_API, &api) != 0) return fail_errno("UFFDIO_API");
    offered = api.features;
  }
  if ((offered & features.required) != features.required) {
    char text[96];
    std::snprintf(text, sizeof text, "this kernel's userfaultfd lacks features %#llx (needs 5.7)",
                  static_cast<unsigned long long>(features.required & ~offered));
    return fail(ErrorCode::kUnsupported, text);
  }
  FARPAGE_TRY(fd, open_descriptor(user_mode_only));
  uffdio_api api{
      .api = UFFD_API, .features = features.required | (features.wanted & offered), .ioctls = 0};
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) return fail_errno("UFFDIO_API with features");
  return Userfaultfd(std::move(fd), features.required | (features.wanted & offered));
}

bool Userfaultfd::is_one(int descriptor) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error) ==
         "anon_inode:[userfaultfd]";
}

// "API:\tAPI:FEATURES:IOCTLS", all hexadecimal (fs/userfaultfd.c, userfaultfd_show_fdinfo).
std::optional<uint64_t> Userfaultfd::features_of(int descriptor) {
  constexpr std::string_view kName = "API:";
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(descriptor));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    const size_t colon = line.find(':', kName.size());
    if (colon == std::string::npos) return std::nullopt;
    return std::strtoull(line.c_str() + colon + 1, nullptr, 16);
  }
  return std::nullopt;
}

Result<Userfaultfd> Userfaultfd::adopt_sent(Fd descriptor) {
  const int fd = descriptor.get();
  if (!is_one(fd))
    return fail(ErrorCode::kInvalid, "the descriptor that was sent is no userfaultfd");
  const std::optional<uint64_t> features = features_of(fd);
  // The kernel refuses a second UFFDIO_API, and any other call before the first one, with EINVAL: a
  // wake of an address that is not registered tells the two apart, and changes nothing.
  uffdio_range nowhere{.start = uint64_t{1} << 46, .len = kPageBytes};
  const bool is_ready = ::ioctl(fd, UFFDIO_WAKE, &nowhere) == 0;
  if (!features || !is_ready)
    return fail(ErrorCode::kInvalid, "UFFDIO_API was not called on the userfaultfd that was sent");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_errno("O_NONBLOCK of the userfaultfd that was sent");
  return Userfaultfd(std::move(descriptor), *features);
}

Result<Userfaultfd> Userfaultfd::enable(Fd fd, const Features& features) {
  uffdio_api api{.api = UFFD_API, .features = features.required, .ioctls = 0};
  if (::ioctl(fd.get(), UFFDIO_API, &api) == 0)
    return Userfaultfd(std::move(fd), features.required);
  if (errno == EPERM)
    return fail(ErrorCode::kDenied,
                "events of forks are not allowed for this user: run as root or with "
                "CAP_SYS_PTRACE");
  if (errno == EINVAL)
    return fail(
        ErrorCode::kUnsupported,
        "this kernel's userfaultfd cannot move pages (UFFDIO_MOVE): run Linux 6.9 or newer");
  return fail_errno("UFFDIO_API of another process's userfaultfd");
}

bool Userfaultfd::has_poison() const {
  return (features_ & UFFD_FEATURE_POISON) != 0;
}

Status Userfaultfd::register_range(uint64_t address, uint64_t bytes) {
  return register_with(fd_.get(), address, bytes,
                       UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
}

// The kernel wants it to be registered, and does not ask how.
Status Userfaultfd::register_for_moves(uint64_t address, uint64_t bytes) {
  return register_with(fd_.get(), address, bytes, UFFDIO_REGISTER_MODE_WP);
}

Status Userfaultfd::register_shared_range(uint64_t address, uint64_t bytes) {
  return register_with(
      fd_.get(), address, bytes,
      UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP);
}

Status Userfaultfd::unregister_range(uint64_t address, uint64_t bytes) {
  uffdio_range range{.start = address, .len = bytes};
  if (::ioctl(fd_.get(), UFFDIO_UNREGISTER, &range) != 0) return fail_errno("UFFDIO_UNREGISTER");
  return {};
}

size_t Userfaultfd::read(std::span<uffd_msg> messages) {
  const ssize_t got = ::read(fd_.get(), messages.data(), messages.size_bytes());
  // EAGAIN: no event. Any other error means that the descriptor is dead; the owner learns it from
  // the target's exit.
  return got <= 0 ? 0 : static_cast<size_t>(got) / sizeof(uffd_msg);
}

namespace {

// How far a call that places pages got, and the errno that stopped it there; 0: all is done.
struct Placed {
  uint64_t bytes = 0;
  int sys_errno = 0;
};

// `call(done, placed)` continues after the first `done` bytes, stores in `placed` how much it
// placed, and returns as ioctl(2). After a partial call errno is EAGAIN, whatever stopped it: the
// next call for the rest reports the cause.
template <typename Call>
Placed place(uint64_t bytes, Call call) {
  uint64_t done = 0;
  while (true) {
    int64_t placed = 0;
    if (call(done, placed) == 0) return {bytes, 0};
    const int sys_errno = errno;
    if (placed <= 0) return {done, sys_errno};
    done += static_cast<uint64_t>(placed);
  }
}

int copy_call(int fd, uint64_t to, uint64_t from, uint64_t bytes, uint64_t mode, int64_t& placed) {
  uffdio_copy request{};
  request.dst = to;
  request.src = from;
  request.len = bytes;
  request.mode = mode;
  const int result = ::ioctl(fd, UFFDIO_COPY, &request);
  placed = request.copy;
  return result;
}

int zero_call(int fd, uint64_t to, uint64_t bytes, int64_t& placed) {
  uffdio_zeropage request{};
  request.range = {.start = to, .len = bytes};
  const int result = ::ioctl(fd, UFFDIO_ZEROPAGE, &request);
  placed = request.zeropage;
  return result;
}

// Never written: all of it maps the kernel's one zero page, so it is always in the cache.
alignas(kPageBytes) std::array<std::byte, kMaxZeroRun * kPageBytes> zeros;

}  // namespace

Outcome Userfaultfd::copy(uint64_t to, const void* from, uint64_t bytes, Protection protection) {
  const uint64_t mode = protection == Protection::kWriteProtected ? UFFDIO_COPY_MODE_WP : 0;
  const auto source = reinterpret_cast<uint64_t>(from);
  uint64_t done = 0;
  while (true) {
    const Placed rest = place(bytes - done, [&](uint64_t more, int64_t& placed) {
      const uint64_t at = done + more;
      return copy_call(fd_.get(), to + at, source + at, bytes - at, mode, placed);
    });
    done += rest.bytes;
    if (rest.sys_errno == 0) return Outcome::kDone;
    if (rest.sys_errno != EEXIST) return outcome_of_errno(rest.sys_errno, "UFFDIO_COPY");
    wake(to + done, kPageBytes);
    done += kPageBytes;  // skip the present page
    if (done >= bytes) return Outcome::kAlreadyPresent;
  }
}

Outcome Userfaultfd::copy_page(uint64_t to, const void* from, uint64_t page_bytes,
                               uffdio_copy& argument) {
  argument.dst = to;
  argument.src = reinterpret_cast<uint64_t>(from);
  argument.len = page_bytes;
  argument.mode = 0;
  if (::ioctl(fd_.get(), UFFDIO_COPY, &argument) == 0) return Outcome::kDone;
  const Outcome outcome = outcome_of_errno(errno, "UFFDIO_COPY");
  if (outcome == Outcome::kAlreadyPresent) wake(to, page_bytes);
  return outcome;
}

ZeroResult Userfaultfd::zero(uint64_t address, uint64_t bytes, ZeroFrames frames) {
  const Placed run = place(bytes, [&](uint64_t done, int64_t& placed) {
    const uint64_t to = address + done;
    if (frames == ZeroFrames::kShared) return zero_call(fd_.get(), to, bytes - done, placed);
    const auto source = reinterpret_cast<uint64_t>(zeros.data());
    return copy_call(fd_.get(), to, source, bytes - done, 0, placed);
  });
  const auto pages = static_cast<uint32_t>(run.bytes >> kPageShift);
  if (run.sys_errno == 0) return {pages, Outcome::kDone};
  if (run.sys_errno == EEXIST) wake(address + run.bytes, kPageBytes);
  return {pages, outcome_of_errno(run.sys_errno, "placing zeros")};
}

std::optional<Outcome> Userfaultfd::map_cached(uint64_t address, Protection protection) {
  uffdio_continue request{};
  request.range = {.start = address, .len = kPageBytes};
  request.mode = protection == Protection::kWriteProtected ? UFFDIO_CONTINUE_MODE_WP : 0;
  if (::ioctl(fd_.get(), UFFDIO_CONTINUE, &request) == 0) return Outcome::kDone;
  const int sys_errno = errno;
  if (sys_errno == EFAULT) return std::nullopt;
  if (sys_errno == EEXIST) wake(address, kPageBytes);
  return outcome_of_errno(sys_errno, "UFFDIO_CONTINUE");
}

// Asks for what anonymous memory does not have. The kernel refuses that with EINVAL, but first
// looks for the one mapping, without which it is ENOENT (mm/userfaultfd.c, mfill_atomic).
Outcome Userfaultfd::find_registered(uint64_t address, uint64_t bytes) const {
  uffdio_continue request{};
  request.range = {.start = address, .len = bytes};
  if (::ioctl(fd_.get(), UFFDIO_CONTINUE, &request) == 0) return Outcome::kUnmapped;
  if (errno == EINVAL) return Outcome::kDone;
  const Outcome outcome = outcome_of_errno(errno, "UFFDIO_CONTINUE");
  return outcome == Outcome::kAlreadyPresent ? Outcome::kUnmapped : outcome;
}

std::optional<Userfaultfd> Userfaultfd::child_of(const uffd_msg& message) const {
  if (message.event != UFFD_EVENT_FORK) return std::nullopt;
  return Userfaultfd(Fd(static_cast<int>(message.arg.fork.ufd)), features_);
}

Outcome Userfaultfd::write_protect(uint64_t address, uint64_t bytes, bool on) const {
  uffdio_writeprotect request{};
  request.range = {.start = address, .len = bytes};
  request.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
  if (::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request) == 0) return Outcome::kDone;
  return outcome_of_errno(errno, "UFFDIO_WRITEPROTECT");
}

Outcome Userfaultfd::poison(uint64_t address, uint64_t bytes) {
  uffdio_poison request{};
  request.range = {.start = address, .len = bytes};
  if (::ioctl(fd_.get(), UFFDIO_POISON, &request) == 0) return Outcome::kDone;
  const Outcome outcome = outcome_of_errno(errno, "UFFDIO_POISON");
  if (outcome == Outcome::kAlreadyPresent) wake(address, bytes);
  return outcome;
}

void Userfaultfd::wake(uint64_t address, uint64_t bytes) {
  uffdio_range range{.start = address, .len = bytes};
  // Fails only when the range is gone; then no thread waits.
  (void)::ioctl(fd_.get(), UFFDIO_WAKE, &range);
}

std::optional<Event> decode(const uffd_msg& message, const ExtentMap& extents) {
  switch (message.event) {
    case UFFD_EVENT_PAGEFAULT: {
      const uint64_t address = message.arg.pagefault.address;
      const uint64_t flags = message.arg.pagefault.flags;
      const std::optional<PageIndex> page = extents.find(address);
      if (!page) return StrayFault{address};
      Fault fault;
      fault.page = *page;
      fault.thread = message.arg.pagefault.feat.ptid;
      if ((flags & UFFD_PAGEFAULT_FLAG_WP) != 0) {
        fault.kind = FaultKind::kWriteProtected;
      } else {
        fault.kind = (flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0 ? FaultKind::kMissingWrite
                                                              : FaultKind::kMissingRead;
      }
      return fault;
    }
    case UFFD_EVENT_UNMAP:
    case UFFD_EVENT_REMOVE: {
      Unmapped unmapped{extents.runs_in(message.arg.remove.start, message.arg.remove.end)};
      if (unmapped.runs.empty()) return std::nullopt;
      return unmapped;
    }
    case UFFD_EVENT_REMAP: {
      const uint64_t from = message.arg.remap.from;
      Moved moved{extents.runs_in(from, from + message.arg.remap.len)};
      if (moved.runs.empty()) return std::nullopt;
      return moved;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace farpage::uffd
