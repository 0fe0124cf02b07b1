#include "uffd/guest_memory.h"

#include "uffd/kernel_abi.h"

namespace farpage::uffd {

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

void GuestMemory::read(Events& events) {
  events.gone_count = 0;
  events.fault_count = 0;
  std::array<uffd_msg, kMaxEvents> messages;
  const size_t count = userfaultfd_.read(messages);
  for (const uffd_msg& message : std::span(messages).first(count)) {
    switch (message.event) {
      case UFFD_EVENT_PAGEFAULT:
        events.faults[events.fault_count++] = {
            message.arg.pagefault.address & ~uint64_t{kPageBytes - 1},
            (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0};
        break;
      case UFFD_EVENT_REMOVE:
      case UFFD_EVENT_UNMAP:
        events.gone[events.gone_count++] = {message.arg.remove.start, message.arg.remove.end,
                                            message.event == UFFD_EVENT_UNMAP};
        break;
      case UFFD_EVENT_REMAP:
        events.gone[events.gone_count++] = {message.arg.remap.from,
                                            message.arg.remap.from + message.arg.remap.len, true};
        break;
      default:
        // A fork brings the descriptor of the child, which nobody serves: closed here.
        (void)userfaultfd_.child_of(message);
        break;
    }
  }
}

}  // namespace farpage::uffd
