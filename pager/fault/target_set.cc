#include "pager/fault/target_set.h"

#include <utility>

namespace farpage::pager {

Result<TargetSet> TargetSet::create() {
  FARPAGE_TRY(epoll, Fd::from_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  return TargetSet(std::move(epoll));
}

TargetSet::TargetSet(TargetSet&& other) noexcept
    : epoll_(std::move(other.epoll_)), watched_(epoll_.get()) {}

Result<bool> TargetSet::add(Target& target, int events) {
  const MutexLock lock(mutex_);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &target;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, events, &event) != 0)
    return fail_errno("watching the faults of a target");
  members_.push_back({&target, events});
  return publish();
}

bool TargetSet::remove(Target& target) {
  const MutexLock lock(mutex_);
  std::erase_if(members_, [&](const Member& member) {
    if (member.target != &target) return false;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, member.events, nullptr);
    return true;
  });
  return publish();
}

bool TargetSet::publish() {
  const bool one = members_.size() == 1;
  sole_.store(one ? members_.front().target : nullptr, std::memory_order_seq_cst);
  const int watched = one ? members_.front().events : epoll_.get();
  return watched_.exchange(watched, std::memory_order_acq_rel) != watched;
}

}  // namespace farpage::pager
