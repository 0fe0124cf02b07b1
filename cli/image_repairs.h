// ImageRepairs: what a node copies for the coordinator: images that lack replicas, one after the
// other.
#pragma once

#include <atomic>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/strong.h"
#include "cli/image_settings.h"
#include "pager/options.h"

namespace farpage::cli {

// Threads: any; one of its own, which ends when the READ of a map or the request that it has begun
// does.
class ImageRepairs {
 public:
  ImageRepairs(ClusterSettings cluster, pager::RepairRate rate);
  ~ImageRepairs();
  // Soon, or not: what waits for so long that the coordinator would have asked again is another
  // node's by now. Of one that is under way: no change.
  void want(const ImageId& image);
  // Does not wait. Nothing is begun any more.
  void stop();

 private:
  static constexpr size_t kMaxWanted = 64;  // the coordinator asks again
  static constexpr Seconds kForgotten{12};
  struct Wanted {
    ImageId image;
    Instant asked_at{0};
  };
  void run();
  void repair(const ImageId& image) const;

  const ClusterSettings cluster_;
  const pager::RepairRate rate_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Wanted> wanted_ FARPAGE_GUARDED_BY(mutex_);  // the first is under way
  std::jthread thread_;
};

}  // namespace farpage::cli
