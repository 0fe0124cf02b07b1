#include "pager/links/borrower_thread.h"

#include <pthread.h>

#include <algorithm>
#include <optional>

#include "pager/links/borrower.h"

namespace farpage::pager {
namespace {

constexpr Milliseconds kLookInterval{1000};
// Pages may wait for what a borrower was rung for; heartbeats have this time.
constexpr Seconds kLate{2};

}  // namespace

Result<std::unique_ptr<BorrowerThread>> BorrowerThread::create() {
  FARPAGE_TRY(bell, Doorbell::create());
  return std::unique_ptr<BorrowerThread>(new BorrowerThread(std::move(bell)));
}

BorrowerThread::BorrowerThread(Doorbell bell)
    : bell_(std::move(bell)), thread_([this] { run(); }) {}

BorrowerThread::~BorrowerThread() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  bell_.ring();
}

void BorrowerThread::add(Borrower& borrower) {
  {
    const MutexLock lock(mutex_);
    members_.push_back({&borrower, SteadyClock::read()});
  }
  bell_.ring();
}

void BorrowerThread::remove(Borrower& borrower) {
  MutexLock lock(mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.borrower == &borrower; });
  changed_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) { return served_ != &borrower; });
}

Borrower* BorrowerThread::next(Instant now, Instant& until) {
  std::optional<size_t> due;
  for (size_t i = 0; i < members_.size(); ++i) {
    const size_t at = (next_ + i) % members_.size();
    const Member& member = members_[at];
    if (member.borrower->take_ring() || member.due < now - kLate) {
      next_ = at + 1;
      return member.borrower;
    }
    if (member.due <= now && !due) due = at;
    until = std::min(until, member.due);
  }
  if (!due) return nullptr;
  next_ = *due + 1;
  return members_[*due].borrower;
}

void BorrowerThread::set_due(const Borrower& borrower, Instant due) {
  for (Member& member : members_)
    if (member.borrower == &borrower) member.due = due;
}

void BorrowerThread::run() {
  (void)pthread_setname_np(pthread_self(), "fp-borrower");
  MutexLock lock(mutex_);
  while (!stopping_) {
    const Instant now = SteadyClock::read();
    Instant until = now + kLookInterval;
    Borrower* const served = served_ = next(now, until);
    if (served == nullptr) {
      lock.unlock();
      (void)bell_.wait(std::max(std::chrono::ceil<Milliseconds>(until - now), Milliseconds(1)));
      lock.lock();
      continue;
    }
    lock.unlock();
    const Instant due = served->serve();
    lock.lock();
    set_due(*served, due);
    served_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace farpage::pager
