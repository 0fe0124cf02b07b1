// The start of the shim: reserve the window, hand it over, start the agent.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/descriptor.h"
#include "shim/report.h"
#include "shim/shim.h"

namespace farpage::shim {
namespace {

// Addresses and window offsets agree modulo any alignment up to this one.
constexpr uint64_t kWindowAlignment = uint64_t{1} << 30;

void name_program(char* name, size_t bytes) {
  char path[4096];
  const long length = system_call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe",
                                  static_cast<char*>(path), sizeof(path));
  if (is_error(length)) {
    return;
  }
  size_t begin = static_cast<size_t>(length);
  while (begin > 0 && path[begin - 1] != '/') {
    --begin;
  }
  const size_t letters = static_cast<size_t>(length) - begin;
  memcpy(name, path + begin, letters < bytes - 1 ? letters : bytes - 1);
}

}  // namespace

bool Shim::active() {
  const State state = state_.load(std::memory_order_acquire);
  if (state != State::kUnknown) {
    return state == State::kActive;
  }
  if (environ == nullptr) {
    return false;  // libc itself has not started: too early to know
  }
  const Settings settings = read_settings_or_exit();
  const Locked locked(lock_);
  if (state_.load(std::memory_order_relaxed) == State::kUnknown) {
    if (settings.socket_path == nullptr) {
      state_.store(State::kLocal, std::memory_order_release);
    } else {
      start(settings);
      state_.store(State::kActive, std::memory_order_release);
    }
  }
  return state_.load(std::memory_order_relaxed) == State::kActive;
}

void Shim::start(const Settings& settings) {
  minimum_bytes_ = settings.minimum_bytes;
  userfault_ = open_userfault_or_exit(settings.share_at_fork);
  userfault_.fd = move_out_of_the_way(userfault_.fd);
  reserve_window_or_exit(settings.window_bytes);

  const long ring_fd = agent_.create_ring();
  if (is_error(ring_fd)) {
    Report().text("cannot create the agent's ring: ").error(ring_fd).write_and_exit();
  }
  const uffd::handover::Hello hello = make_hello();
  control_.hand_over_or_exit(settings.socket_path, hello, userfault_.fd, static_cast<int>(ring_fd));
  system_call(SYS_close, ring_fd);  // it stays mapped

  const long started = agent_.start(userfault_.fd, control_.fd());
  if (is_error(started)) {
    Report().text("cannot start the agent thread: ").error(started).write_and_exit();
  }
}

uffd::handover::Hello Shim::make_hello() const {
  uffd::handover::Hello hello;
  hello.window_address = window_.begin;
  hello.window_bytes = window_.bytes();
  hello.features = userfault_.features;
  hello.ring_bytes = sizeof(uffd::handover::AgentRing);
  hello.pid = static_cast<int32_t>(system_call(SYS_getpid));
  name_program(hello.program, sizeof(hello.program));
  return hello;
}

void Shim::reserve_window_or_exit(uint64_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const uint64_t reserved_bytes = bytes + kWindowAlignment;
  const long reserved = system_call(SYS_mmap, nullptr, reserved_bytes, PROT_NONE, kFlags, -1, 0);
  if (is_error(reserved)) {
    Report()
        .text("cannot reserve a window of ")
        .number(bytes)
        .text(" bytes of address space: ")
        .error(reserved)
        .text("; lift `ulimit -v`, or make FARPAGE_WINDOW_BYTES smaller")
        .write_and_exit();
  }
  const uint64_t begin = static_cast<uint64_t>(reserved);
  window_.begin = (begin + kWindowAlignment - 1) & ~(kWindowAlignment - 1);
  window_.end = window_.begin + bytes;
  if (window_.begin > begin) {
    system_call(SYS_munmap, begin, window_.begin - begin);
  }
  if (begin + reserved_bytes > window_.end) {
    system_call(SYS_munmap, window_.end, begin + reserved_bytes - window_.end);
  }
  long opened = 0;
  for (Ranges* ranges :
       {&free_, &extents_, &locked_, &registered_, &advised_, &childless_, &wiped_}) {
    opened = is_error(opened) ? opened : ranges->open();
  }
  const long made = is_error(opened) ? opened : make_window_memory(window_);
  if (is_error(made)) {
    Report().text("cannot register the window with userfaultfd: ").error(made).write_and_exit();
  }
  free_.add(window_);
}

// Gives reserved memory the properties of far memory.
long Shim::make_window_memory(Span span) {
  // In a kernel without huge pages this fails with EINVAL and is not needed.
  system_call(SYS_madvise, span.begin, span.bytes(), MADV_NOHUGEPAGE);
  if (forks_ == 0) {
    const long kept_from_children =
        system_call(SYS_madvise, span.begin, span.bytes(), MADV_DONTFORK);
    if (is_error(kept_from_children)) {
      return kept_from_children;
    }
  }
  return register_span(userfault_.fd, span);
}

}  // namespace farpage::shim
