#include "image/renewer.h"

#include <pthread.h>

#include <utility>

#include "base/log.h"

namespace farpage::image {
namespace {

// Between two requests for READs that wait for a replica.
constexpr Milliseconds kBetweenRequests{100};

}  // namespace

Renewer::Renewer(std::string who, coordinator::ImageClient& images, coordinator::ImageReader reader,
                 std::function<void(const coordinator::OpenedImage&)> on_refreshed)
    : who_(std::move(who)),
      images_(images),
      reader_(std::move(reader)),
      on_refreshed_(std::move(on_refreshed)),
      thread_([this] { run(); }) {}

Renewer::~Renewer() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Renewer::add(const ImageId& name) {
  const MutexLock lock(mutex_);
  entries_.try_emplace(name);
}

void Renewer::refresh(const Image& image, const coordinator::OpenedImage& opened,
                      ImageLinks& links) {
  const ImageId name = opened.image.name;
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_[name];
    entry.image = &image;
    entry.links = &links;
    entry.version = opened.leases_version;
  }
  image.refresh_by([this, name] {
    {
      const MutexLock lock(mutex_);
      entries_.at(name).is_wanted = any_wanted_ = true;
    }
    changed_.notify_all();
  });
}

void Renewer::refresh_again(const ImageId& name) {
  const MutexLock lock(mutex_);
  entries_.at(name).version = 0;
}

void Renewer::run() {
  (void)pthread_setname_np(pthread_self(), "fp-renew");
  Instant renewed_at = SteadyClock::read();
  MutexLock lock(mutex_);
  while (!stopping_) {
    const Instant due = renewed_at + coordinator::kReaderInterval;
    (void)changed_.wait_for(lock, due - SteadyClock::read(),
                            [this]() FARPAGE_REQUIRES(mutex_) { return stopping_ || any_wanted_; });
    if (stopping_) return;
    const bool is_due = SteadyClock::read() >= due;
    if (is_due) renewed_at = SteadyClock::read();
    const std::map<ImageId, Entry> entries = entries_;
    for (auto& [name, entry] : entries_) entry.is_wanted = false;
    any_wanted_ = false;
    lock.unlock();
    for (const auto& [name, entry] : entries)
      if (is_due || entry.is_wanted) serve(name, entry);
    lock.lock();
    if (!is_due)
      (void)changed_.wait_for(lock, kBetweenRequests,
                              [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; });
  }
}

void Renewer::serve(const ImageId& name, const Entry& entry) {
  const Instant asked_at = SteadyClock::read();
  const auto heard = images_.renew(name, reader_);
  Status renewed = heard ? Status() : tl::unexpected(heard.error());
  if (entry.image != nullptr && renewed &&
      (entry.is_wanted || heard->leases_version != entry.version))
    renewed = refresh(name, entry);
  // What is not there any more has no leases either.
  const bool is_answered = renewed || renewed.error().code == ErrorCode::kNotFound;
  if (entry.image != nullptr && is_answered) entry.image->note_leases(asked_at);
  note(name, renewed);
}

Status Renewer::refresh(const ImageId& name, const Entry& entry) {
  FARPAGE_TRY(opened, images_.open(name, reader_));
  if (opened.image.region != entry.image->info().region)
    return fail(ErrorCode::kNotFound, "the image was removed, and another one has its name");
  FARPAGE_TRY_VOID(entry.image->refresh(opened, *entry.links));
  {
    const MutexLock lock(mutex_);
    entries_.at(name).version = opened.leases_version;
  }
  log::info("{}: leases_refreshed image={}", who_, name.value);
  if (on_refreshed_) on_refreshed_(opened);
  return {};
}

// Whoever reads goes on with what this process has: places and keys.
void Renewer::note(const ImageId& name, const Status& renewed) {
  const bool was_silent = silent_.count(name) != 0;
  if (!renewed && !was_silent) {
    silent_.insert(name);
    log::warn("{}: not_renewed image={} reason=\"{}\"", who_, name.value,
              renewed.error().message());
  }
  if (renewed && was_silent) {
    silent_.erase(name);
    log::info("{}: renewed again image={}", who_, name.value);
  }
}

}  // namespace farpage::image
