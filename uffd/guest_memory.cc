#include "uffd/guest_memory.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "uffd/kernel_abi.h"

namespace farpage::uffd {
namespace {

static_assert(GuestMemory::kLandingBytes == GuestMemory::kMaxEvents * sizeof(uffd_msg));
static_assert(GuestMemory::kArgumentBytes == sizeof(uffdio_copy));

std::optional<GuestMemory::Gone> gone_of(const uffd_msg& message) {
  switch (message.event) {
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
      return GuestMemory::Gone{message.arg.remove.start, message.arg.remove.end,
                               message.event == UFFD_EVENT_UNMAP};
    case UFFD_EVENT_REMAP:
      return GuestMemory::Gone{message.arg.remap.from,
                               message.arg.remap.from + message.arg.remap.len, true};
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<GuestMemory> GuestMemory::adopt(Fd descriptor) {
  FARPAGE_TRY(userfaultfd, Userfaultfd::adopt_sent(std::move(descriptor)));
  constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP |
                               UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_FORK;
  const bool has_events = (userfaultfd.features() & kEvents) != 0;
  return GuestMemory(std::move(userfaultfd), has_events);
}

bool GuestMemory::kernel_can_poison() {
  const auto probe = Userfaultfd::create(eventless_features(), true);
  return probe && probe->has_poison();
}

bool GuestMemory::tells_removals() const {
  return (userfaultfd_.features() & UFFD_FEATURE_EVENT_REMOVE) != 0;
}

void GuestMemory::read(Events& events) {
  events.gone_count = 0;
  events.fault_count = 0;
  std::array<uffd_msg, kMaxEvents> own;
  std::span<uffd_msg> messages(own);
  if (!landing_.empty()) {
    messages = {reinterpret_cast<uffd_msg*>(landing_.data()), kMaxEvents};
    // Its memory is there, so the kernel's copy cannot fail in the middle of a kill.
    std::atomic_ref(*reinterpret_cast<uint8_t*>(landing_.data())).fetch_or(0);
  }
  const size_t count = userfaultfd_.read(messages);
  for (const uffd_msg& message : messages.first(count)) {
    if (message.event == UFFD_EVENT_PAGEFAULT) {
      events.faults[events.fault_count++] = {
          message.arg.pagefault.address & ~uint64_t{kPageBytes - 1},
          (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0};
    } else if (const auto gone = gone_of(message)) {
      events.gone[events.gone_count++] = *gone;
    } else {
      // A fork brings the descriptor of the child, which nobody serves: closed here.
      (void)userfaultfd_.child_of(message);
    }
  }
}

void GuestMemory::left_in(std::span<const std::byte> landing, Events& events) {
  events.gone_count = 0;
  events.fault_count = 0;
  for (size_t i = 0; i < kMaxEvents; ++i) {
    uffd_msg message;
    std::memcpy(&message, landing.data() + i * sizeof message, sizeof message);
    if (const auto gone = gone_of(message)) events.gone[events.gone_count++] = *gone;
  }
}

Outcome GuestMemory::copy_noted(uint64_t to, std::span<const std::byte> page,
                                std::span<std::byte> argument) {
  return userfaultfd_.copy_page(to, page.data(), page.size(),
                                *reinterpret_cast<uffdio_copy*>(argument.data()));
}

bool GuestMemory::is_placed(std::span<const std::byte> argument) {
  uffdio_copy request;
  std::memcpy(&request, argument.data(), sizeof request);
  return request.copy > 0 || request.copy == -EEXIST;
}

void GuestMemory::clear_argument(std::span<std::byte> argument) {
  std::atomic_ref(reinterpret_cast<uffdio_copy*>(argument.data())->copy)
      .store(0, std::memory_order_release);
}

}  // namespace farpage::uffd
