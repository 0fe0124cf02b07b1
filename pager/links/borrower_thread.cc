#include "pager/links/borrower_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/unanswered.h"
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

void BorrowerThread::give_back(coordinator::Client& client, const RegionId& region) {
  {
    const MutexLock lock(mutex_);
    leftovers_.push_back({&client, region, SteadyClock::read() + kLookInterval});
  }
  bell_.ring();
}

std::optional<BorrowerThread::Leftover> BorrowerThread::take_leftover(Instant now, Instant& until) {
  if (leftovers_.empty()) return std::nullopt;
  const Leftover first = leftovers_.front();  // of all, it is due first
  if (first.due > now) {
    until = std::min(until, first.due);
    return std::nullopt;
  }
  leftovers_.pop_front();
  return first;
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
      if (auto leftover = take_leftover(now, until)) {
        lock.unlock();
        const Status deleted = leftover->client->delete_region(leftover->region);
        const bool again = is_unanswered(deleted);
        if (!again)
          log::info("pager: region_deleted region={} answer=\"{}\"", leftover->region.value,
                    deleted ? "done" : deleted.error().message());
        lock.lock();
        leftover->due = SteadyClock::read() + kLookInterval;
        if (again) leftovers_.push_back(std::move(*leftover));
        continue;
      }
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
