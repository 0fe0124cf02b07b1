#include "uffd/other_process.h"

#include <fcntl.h>

#include <optional>

#include "uffd/attached_window.h"
#include "uffd/guest_window.h"
#include "uffd/kernel_abi.h"
#include "uffd/other_window.h"

namespace farpage::uffd {
namespace {

// Not bound yet.
Result<std::unique_ptr<OtherWindow>> make_window(HandedOver& target, uint64_t more_pages,
                                                 Mapping extents_memory) {
  Userfaultfd userfaultfd = Userfaultfd::adopt(std::move(target.userfaultfd), target.features);
  FARPAGE_TRY(extents, ExtentMap::create(target.window_address, target.window_bytes >> kPageShift,
                                         more_pages, std::move(extents_memory)));
  auto window = target.attached
                    ? std::make_unique<AttachedWindow>(std::move(userfaultfd), std::move(extents))
                    : std::make_unique<OtherWindow>(std::move(userfaultfd), std::move(extents));
  if (target.forked) window->note_fork();
  return window;
}

}  // namespace

Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target, uint64_t more_pages,
                                                   Mapping extents) {
  FARPAGE_TRY(window, make_window(target, more_pages, std::move(extents)));
  if (window->is_behind())
    return fail(ErrorCode::kConflict,
                "the pager was killed while it followed a change of the program's mappings");
  window->bind(target);
  if (!window->is_readable())
    return fail(ErrorCode::kDenied,
                "the pager may not read the memory of process " + std::to_string(target.pid) +
                    ": run it as root, or set sysctl kernel.yama.ptrace_scope=0");
  return window;
}

Result<std::unique_ptr<AddressSpace>> adopt_child(HandedOver& child, uint64_t more_pages,
                                                  Mapping extents) {
  return make_window(child, more_pages, std::move(extents));
}

Result<std::unique_ptr<AddressSpace>> adopt_guest(Fd userfaultfd,
                                                  std::span<const GuestRange> ranges,
                                                  uint64_t staging_pages, bool is_new,
                                                  Mapping memory, Mapping events) {
  FARPAGE_TRY(sent, Userfaultfd::adopt_sent(std::move(userfaultfd)));
  const uint64_t features = sent.features();
  if ((features & UFFD_FEATURE_EVENT_REMOVE) == 0)
    return fail(ErrorCode::kUnsupported,
                "its userfaultfd does not tell which pages the guest gives up "
                "(UFFD_FEATURE_EVENT_REMOVE)");
  if ((features & UFFD_FEATURE_EVENT_FORK) != 0)
    return fail(ErrorCode::kUnsupported,
                "its userfaultfd tells of forks (UFFD_FEATURE_EVENT_FORK), and children are not "
                "served");
  // Page numbers follow from addresses, also for a successor.
  if ((features & UFFD_FEATURE_EVENT_REMAP) != 0)
    return fail(
        ErrorCode::kUnsupported,
        "its userfaultfd tells of moves (UFFD_FEATURE_EVENT_REMAP), and memory that moves is "
        "not served");
  uint64_t pages = 0;
  for (const GuestRange& range : ranges)
    pages += ((range.end - range.begin) >> kPageShift) + ExtentMap::kGranulePages;
  FARPAGE_TRY(extents,
              ExtentMap::create(ExtentMap::kNoWindow, staging_pages, pages, std::move(memory)));
  // The kernel can poison where it can move pages, whether or not that was asked for.
  Userfaultfd own = Userfaultfd::adopt(std::move(sent).release(), features | UFFD_FEATURE_POISON);
  for (const GuestRange& range : ranges) {
    if (!is_new) break;
    if (extents->runs_in(range.begin, range.end).empty())
      FARPAGE_TRY_VOID(extents->add(range.begin, range.end));
    FARPAGE_TRY_VOID(own.register_range(range.begin, range.end - range.begin));
  }
  auto window =
      std::make_unique<GuestWindow>(std::move(own), std::move(extents), std::move(events));
  if (!window->take_over())
    return fail(ErrorCode::kConflict,
                "the pager was killed while it followed a change of the guest's memory");
  return window;
}

std::unique_ptr<AddressSpace> child_of(AddressSpace& parent, Fd userfaultfd) {
  auto& window = static_cast<OtherWindow&>(parent);
  return window.child_with(Userfaultfd::adopt(std::move(userfaultfd), window.features()));
}

bool address_space_exists(int userfaultfd) {
  Userfaultfd asked = Userfaultfd::adopt(Fd(::fcntl(userfaultfd, F_DUPFD_CLOEXEC, 0)), 0);
  return asked.write_protect(kPageBytes, kPageBytes, true) != Outcome::kProcessGone;
}

void keep_extents(AddressSpace& space, Mapping extents) {
  static_cast<OtherWindow&>(space).keep_extents(std::move(extents));
}

Status await_agent(AddressSpace& space, Nanoseconds patience) {
  return static_cast<OtherWindow&>(space).await_agent(patience);
}

bool tells_of_forks(int userfaultfd) {
  const std::optional<uint64_t> features = Userfaultfd::features_of(userfaultfd);
  return !features || (*features & UFFD_FEATURE_EVENT_FORK) != 0;
}

bool tells_of_forks(const HandedOver& target) {
  return (target.features & UFFD_FEATURE_EVENT_FORK) != 0;
}

uint64_t features_of(const AddressSpace& space) {
  return static_cast<const OtherWindow&>(space).features();
}

void bind_child(AddressSpace& space, HandedOver& child) {
  static_cast<OtherWindow&>(space).bind(child);
}

}  // namespace farpage::uffd
