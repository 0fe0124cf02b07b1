// GuestWindow: the address space of a VMM that has sent a userfaultfd of its own, with which it has
// registered the guest's memory (snapshot/). Internal: other_process.cc makes it.
//
// As of a forked child of an attached program (AttachedWindow): there is no window, an agent comes
// later, and takes pages away by UFFDIO_MOVE. The registration is the VMM's, and is made one for
// write protection, too, in place: the kernel does that in one step, so no thread of the VMM ever
// finds memory that is not registered. Which features the userfaultfd has was the VMM's choice:
//  - without UFFD_FEATURE_EVENT_REMOVE nobody would tell that the guest has given pages up, and
//    they would come back with the bytes that they had: it is refused;
//  - with UFFD_FEATURE_EVENT_FORK there would be children to serve, with UFFD_FEATURE_EVENT_REMAP
//    memory would move, and a successor would not know from where: both are refused;
//  - without UFFD_FEATURE_EVENT_UNMAP, memory that the VMM unmaps is not known to be gone. What
//    lies there afterwards is not registered, so that it cannot be protected, and no page of it
//    leaves;
//  - without UFFD_FEATURE_THREAD_ID a fault of the evictor's own could not be told from those of
//    the VMM, and would wait for the evictor: so it reads only what is present.
//
// Where pages are given up, and nothing is unmapped or moved, a successor can follow the events
// that a dead pager has read, whether or not that one has: the kernel writes them into memory that
// survives, and nothing is placed or moved between their reading and the end of its application
// (EventOrder), so that to give up a page once more changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <tuple>

#include "base/mapping.h"
#include "uffd/attached_window.h"
#include "uffd/other_process.h"

namespace farpage::uffd {

// Threads: as AttachedWindow.
class GuestWindow final : public AttachedWindow {
 public:
  // `landing`: kGuestEventBytes, zeros, or what a dead pager has left there.
  GuestWindow(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents, Mapping landing)
      : AttachedWindow(std::move(userfaultfd), std::move(extents)), memory_(std::move(landing)) {}

  // After a dead pager: false, if it may have taken an event that cannot be followed any more.
  bool take_over() {
    if (!is_behind()) return true;
    if (!only_gives_up() || landing().overflowed.load(std::memory_order_acquire) != 0) return false;
    const auto& messages = landing().messages;
    landed_ = 0;
    while (landed_ < messages.size() && messages[landed_].event != 0) ++landed_;
    read_again(std::span(messages).first(landed_));
    return true;
  }

  // kNotFound: a page is absent.
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    for (size_t page = 0; page < present.size();) {
      const size_t got = read_memory(present.subspan(page), out.subspan(page * kPageBytes));
      if (got == 0) return fail(ErrorCode::kNotFound, "a page of the guest is absent");
      page += got;
    }
    return {};
  }

 protected:
  // One may come between the look and the reading.
  void begin_following(bool is_any_pending) override {
    if (!only_gives_up()) {
      AttachedWindow::begin_following(is_any_pending);
      return;
    }
    if (is_behind()) return;  // what was read ahead is still to be applied
    std::memset(landing().messages.data(), 0, landed_ * sizeof(uffd_msg));
    landing().overflowed.store(0, std::memory_order_relaxed);
    landed_ = 0;
    AttachedWindow::begin_following(true);
  }

  size_t read_messages(std::span<uffd_msg> messages) override {
    if (!only_gives_up()) return AttachedWindow::read_messages(messages);
    const std::span room = std::span(landing().messages).subspan(landed_);
    if (room.empty()) {
      landing().overflowed.store(1, std::memory_order_release);
      return AttachedWindow::read_messages(messages);
    }
    const size_t got =
        AttachedWindow::read_messages(room.first(std::min(room.size(), messages.size())));
    std::copy_n(room.begin(), got, messages.begin());
    landed_ += got;
    return got;
  }

 private:
  // Of one section, and of those that were read ahead; zeros behind them.
  struct Landing {
    std::atomic<uint64_t> overflowed;
    std::array<uffd_msg, (kGuestEventBytes - sizeof(uint64_t)) / sizeof(uffd_msg)> messages;
  };
  static_assert(sizeof(Landing) <= kGuestEventBytes);

  bool only_gives_up() const { return (features() & UFFD_FEATURE_EVENT_UNMAP) == 0; }
  Landing& landing() { return *reinterpret_cast<Landing*>(memory_.data()); }

  const Mapping memory_;
  size_t landed_ = std::tuple_size_v<decltype(Landing::messages)>;  // as far as is known
};

}  // namespace farpage::uffd
