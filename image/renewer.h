// Renewer: keeps a process a reader of its images, and the leases that it reads by as the
// coordinator has them: replicas are made again, and move, while the image is read.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "coordinator/image_client.h"
#include "image/image.h"
#include "image/image_links.h"

namespace farpage::image {

// Threads: any; one of its own, which alone talks to the coordinator. Its end closes no image.
class Renewer {
 public:
  // `who`: in logs. `on_refreshed`: an image has other leases now, and its maps have them. On the
  // renewer's thread; may be empty. The client outlives it.
  Renewer(std::string who, coordinator::ImageClient& images, coordinator::ImageReader reader,
          std::function<void(const coordinator::OpenedImage&)> on_refreshed);
  ~Renewer();

  // It is renewed from now on.
  void add(const ImageId& name);
  // One that is renewed was loaded. Both outlive the renewer.
  void refresh(const Image& image, const coordinator::OpenedImage& opened, ImageLinks& links);
  // What on_refreshed() began has failed: it is called once more, at the next renewal.
  void refresh_again(const ImageId& name);

 private:
  struct Entry {
    const Image* image = nullptr;  // until it is loaded
    ImageLinks* links = nullptr;
    uint64_t version = 0;
    bool is_wanted = false;  // by a READ that finds no replica
  };
  void run();
  void serve(const ImageId& name, const Entry& entry);
  Status refresh(const ImageId& name, const Entry& entry);
  void note(const ImageId& name, const Status& renewed);

  const std::string who_;
  coordinator::ImageClient& images_;
  const coordinator::ImageReader reader_;
  const std::function<void(const coordinator::OpenedImage&)> on_refreshed_;
  std::set<ImageId> silent_;  // of the thread
  Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  bool any_wanted_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::map<ImageId, Entry> entries_ FARPAGE_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace farpage::image
