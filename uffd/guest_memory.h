// GuestMemory: memory that another process has registered with a userfaultfd of its own, and sent
// to us. That process chose the features, the ranges and the numbers: nothing of it is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "uffd/address_space.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {

// Threads: any; read() one at a time.
class GuestMemory {
 public:
  static constexpr size_t kMaxEvents = 16;
  static constexpr size_t kLandingBytes = kMaxEvents * 32;  // messages as the kernel has them
  static constexpr size_t kArgumentBytes = 40;              // of UFFDIO_COPY

  struct Fault {
    uint64_t address = 0;  // of the page
    bool is_write = false;
  };
  // These addresses have no content any more: given back (madvise, balloon), unmapped or moved. Who
  // made the call goes on when the event is read, so its effect may come after that.
  struct Gone {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool unmapped = false;  // false: still registered, and zeros from now on
  };
  // Of one read, faults and others apart: what is gone comes first, whatever the order in which the
  // kernel had them.
  struct Events {
    std::array<Gone, kMaxEvents> gone;
    size_t gone_count = 0;
    std::array<Fault, kMaxEvents> faults;
    size_t fault_count = 0;
    bool any() const { return gone_count + fault_count > 0; }
  };

  // kInvalid: it is no userfaultfd, or UFFDIO_API was not called on it. Sets O_NONBLOCK.
  static Result<GuestMemory> adopt(Fd descriptor);
  // This kernel has UFFDIO_POISON (6.6).
  static bool kernel_can_poison();

  int fd() const { return userfaultfd_.fd(); }
  Fd release() && { return std::move(userfaultfd_).release(); }
  // The process asked to be told when it gives pages back. Otherwise events come for faults only.
  bool has_events() const { return has_events_; }

  // The process asked to be told when it drops pages (madvise, a balloon).
  bool tells_removals() const;

  // Never blocks.
  void read(Events& events);

  // Of a process that may be killed: read() has the kernel write its messages there, kLandingBytes
  // that outlive the process, so the read of an event and the note of it are one step: who comes
  // after it takes what is gone from there with left_in(), again if it had been taken already.
  void land_in(std::span<std::byte> landing) { landing_ = landing; }
  static void left_in(std::span<const std::byte> landing, Events& events);

  // A copy of one page, also of a larger one, whose argument, kArgumentBytes, outlives the process,
  // too: the kernel writes into it whether the page was placed, before it wakes anybody.
  Outcome copy_noted(uint64_t to, std::span<const std::byte> page, std::span<std::byte> argument);
  // Whether the last copy_noted() with this argument had found or placed the page.
  static bool is_placed(std::span<const std::byte> argument);
  static void clear_argument(std::span<std::byte> argument);

  // As those of Userfaultfd: they never replace a page that is present, and wake who waits.
  Outcome copy(uint64_t to, std::span<const std::byte> bytes) {
    return userfaultfd_.copy(to, bytes.data(), bytes.size(), Protection::kWritable);
  }
  ZeroResult zero(uint64_t address, ZeroFrames frames) {
    return userfaultfd_.zero(address, kPageBytes, frames);
  }
  Outcome poison(uint64_t address, uint64_t bytes = kPageBytes) {
    return userfaultfd_.poison(address, bytes);
  }
  void wake(uint64_t address, uint64_t bytes = kPageBytes) { userfaultfd_.wake(address, bytes); }

 private:
  GuestMemory(Userfaultfd userfaultfd, bool has_events)
      : userfaultfd_(std::move(userfaultfd)), has_events_(has_events) {}

  Userfaultfd userfaultfd_;
  bool has_events_;
  std::span<std::byte> landing_;
};

}  // namespace farpage::uffd
