#include "uffd/guest_memory.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "uffd/kernel_abi.h"

namespace farpage::uffd {
namespace {

bool is_userfaultfd(int descriptor) {
  std::array<char, 64> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size() - 1);
  return length > 0 && std::string_view(target.data()) == "anon_inode:[userfaultfd]";
}

}  // namespace

Result<GuestMemory> GuestMemory::adopt(Fd descriptor) {
  const int fd = descriptor.get();
  if (!is_userfaultfd(fd))
    return fail(ErrorCode::kInvalid, "the descriptor that was sent is no userfaultfd");
  const std::optional<uint64_t> features = Userfaultfd::features_of(fd);
  // The kernel refuses a second UFFDIO_API, and any other call before the first one, with EINVAL: a
  // wake of an address that is not registered tells the two apart, and changes nothing.
  uffdio_range nowhere{.start = uint64_t{1} << 46, .len = kPageBytes};
  const bool is_ready = ::ioctl(fd, UFFDIO_WAKE, &nowhere) == 0;
  if (!features || !is_ready)
    return fail(ErrorCode::kInvalid, "UFFDIO_API was not called on the userfaultfd that was sent");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return fail_errno("O_NONBLOCK of the userfaultfd that was sent");
  constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP |
                               UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_FORK;
  return GuestMemory(Userfaultfd::adopt(std::move(descriptor), *features),
                     (*features & kEvents) != 0);
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
