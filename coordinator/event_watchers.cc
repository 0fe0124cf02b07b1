#include "coordinator/event_watchers.h"

#include <utility>

#include "coordinator/api_json.h"

namespace farpage::coordinator {
namespace {

bool has_answer(const EventBatch& batch) {
  return batch.missed || !batch.events.empty();
}

}  // namespace

EventWatchers::EventWatchers(std::shared_ptr<Cluster> cluster, uint32_t limit)
    : cluster_(std::move(cluster)), limit_(limit), latest_(cluster_->last_event()) {
  cluster_->set_event_listener([this](uint64_t latest) { note_event(latest); });
  thread_ = std::thread([this] { loop(); });
}

EventWatchers::~EventWatchers() {
  stop();
  cluster_->set_event_listener(nullptr);
}

bool EventWatchers::add(uint64_t since, Milliseconds timeout,
                        std::shared_ptr<http::PendingReply> request) {
  const Time deadline = std::chrono::steady_clock::now() + timeout;
  uint64_t known = latest();
  uint64_t number = 0;
  while (true) {
    // A reader that has seen everything, as most have, has nothing to look up.
    if (since != known) {
      const EventBatch batch = cluster_->events(since);
      if (has_answer(batch)) {
        request->reply(http::Reply{200, encode(batch)});
        return true;
      }
    }
    MutexLock lock(mutex_);
    if (stopping_) {
      lock.unlock();
      request->reply(http::Reply{200, encode(cluster_->events(since))});
      return true;
    }
    if (latest_ == known) {
      if (watchers_.size() >= limit_) return false;
      number = next_number_++;
      const bool is_first = deadlines_.empty() || deadline < deadlines_.begin()->first;
      deadlines_.emplace(deadline, number);
      watchers_[number] = Watcher{since, deadline, request};
      if (is_first) changed_.notify_one();
      break;
    }
    known = latest_;  // there may be an answer now
  }
  request->on_gone([weak = weak_from_this(), number] {
    if (const std::shared_ptr<EventWatchers> self = weak.lock()) self->forget(number);
  });
  return true;
}

uint64_t EventWatchers::latest() const {
  const MutexLock lock(mutex_);
  return latest_;
}

uint32_t EventWatchers::waiting() const {
  const MutexLock lock(mutex_);
  return static_cast<uint32_t>(watchers_.size());
}

void EventWatchers::note_event(uint64_t latest) {
  {
    const MutexLock lock(mutex_);
    latest_ = latest;
    has_news_ = true;
  }
  changed_.notify_one();
}

void EventWatchers::forget(uint64_t number) {
  std::shared_ptr<http::PendingReply> ends;  // without the lock
  const MutexLock lock(mutex_);
  const auto watcher = watchers_.find(number);
  if (watcher == watchers_.end()) return;
  deadlines_.erase({watcher->second.deadline, number});
  ends = std::move(watcher->second.request);
  watchers_.erase(watcher);
}

std::vector<EventWatchers::Watcher> EventWatchers::take_due() {
  std::vector<Watcher> due;
  if (has_news_ || stopping_) {
    for (auto& [number, watcher] : watchers_) due.push_back(std::move(watcher));
    watchers_.clear();
    deadlines_.clear();
    has_news_ = false;
    return due;
  }
  const Time now = std::chrono::steady_clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto watcher = watchers_.find(deadlines_.begin()->second);
    due.push_back(std::move(watcher->second));
    watchers_.erase(watcher);
    deadlines_.erase(deadlines_.begin());
  }
  return due;
}

void EventWatchers::answer(const std::vector<Watcher>& watchers) {
  std::map<uint64_t, std::string> bodies;  // by since: for most it is the same
  size_t answered = 0;
  for (const Watcher& watcher : watchers) {
    auto body = bodies.find(watcher.since);
    if (body == bodies.end())
      body = bodies.emplace(watcher.since, encode(cluster_->events(watcher.since))).first;
    watcher.request->reply(http::Reply{200, body->second});
    if (++answered % kAnsweredAtOnce != 0) continue;
    MutexLock lock(mutex_);
    changed_.wait_for(lock, kBetweenAnswers,
                      [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; });
  }
}

void EventWatchers::loop() {
  MutexLock lock(mutex_);
  while (true) {
    const std::vector<Watcher> due = take_due();
    if (!due.empty()) {
      lock.unlock();
      answer(due);
      lock.lock();
    } else if (stopping_) {
      return;
    } else {
      await_due(lock);
    }
  }
}

void EventWatchers::await_due(MutexLock& lock) {
  const bool any = !deadlines_.empty();
  const Time first = any ? deadlines_.begin()->first : Time::max();
  const auto is_changed = [&]() FARPAGE_REQUIRES(mutex_) {
    return has_news_ || stopping_ || (!deadlines_.empty() && deadlines_.begin()->first < first);
  };
  if (any) {
    changed_.wait_until(lock, first, is_changed);
  } else {
    changed_.wait(lock, is_changed);
  }
}

void EventWatchers::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace farpage::coordinator
