#include "cli/image_repairs.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "image/image_repair.h"

namespace farpage::cli {

ImageRepairs::ImageRepairs(ClusterSettings cluster, pager::RepairRate rate)
    : cluster_(std::move(cluster)), rate_(rate), thread_([this] { run(); }) {}

ImageRepairs::~ImageRepairs() {
  stop();
}

void ImageRepairs::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

void ImageRepairs::want(const ImageId& image) {
  {
    const MutexLock lock(mutex_);
    const Instant now = SteadyClock::read();
    const auto known = std::ranges::find(wanted_, image, &Wanted::image);
    if (known != wanted_.end()) known->asked_at = now;
    if (known != wanted_.end() || wanted_.size() == kMaxWanted) return;
    wanted_.push_back({image, now});
  }
  changed_.notify_all();
}

void ImageRepairs::run() {
  (void)pthread_setname_np(pthread_self(), "image-repair");
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) {
      return !wanted_.empty() || stopping_.load(std::memory_order_relaxed);
    });
    if (stopping_.load(std::memory_order_relaxed)) return;
    const Wanted wanted = wanted_.front();
    if (SteadyClock::read() - wanted.asked_at < kForgotten) {
      lock.unlock();
      repair(wanted.image);
      lock.lock();
    }
    wanted_.pop_front();
  }
}

void ImageRepairs::repair(const ImageId& image) const {
  const auto repaired = [&]() -> Result<image::Repaired> {
    FARPAGE_TRY(parts, ClusterParts::create(cluster_));
    image::RepairOptions options;
    options.name = image;
    options.channel = channel_options(cluster_.link);
    options.rate = rate_;
    return image::repair(options, *parts.images, *parts.client, parts.transports, stopping_);
  }();
  if (!repaired)
    log::warn("node image_not_repaired image={} reason=\"{}\"", image.value,
              repaired.error().message());
  else if (repaired->slabs > 0)
    log::info("node image_repaired image={} slabs={} bytes={}", image.value, repaired->slabs,
              repaired->bytes);
}

}  // namespace farpage::cli
