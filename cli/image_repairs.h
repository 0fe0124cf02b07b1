// ImageRepairs: what a node copies for the coordinator: images that lack replicas, one after the
// other.
#pragma once

#include <atomic>
#include <deque>
#include <thread>

#include "base/mutex.h"
#include "base/strong.h"
#include "cli/image_settings.h"
#include "pager/options.h"

namespace farpage::cli {

// Threads: any; one of its own, which ends within a request to the coordinator.
class ImageRepairs {
 public:
  ImageRepairs(ClusterSettings cluster, pager::RepairRate rate);
  ~ImageRepairs();
  // Soon. One that waits, or is under way, already: no change.
  void want(const ImageId& image);

 private:
  static constexpr size_t kMaxWanted = 64;  // the coordinator asks again
  void run();
  void repair(const ImageId& image) const;

  const ClusterSettings cluster_;
  const pager::RepairRate rate_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<ImageId> wanted_ FARPAGE_GUARDED_BY(mutex_);  // the first is under way
  std::jthread thread_;
};

}  // namespace farpage::cli
