#include <set>

#include "base/log.h"
#include "base/unanswered.h"
#include "coordinator/cluster.h"

namespace farpage::coordinator {

Result<ImageInfo> Cluster::create_image(const ImageCreate& create) {
  const Instant now = clock_.now();
  FARPAGE_TRY(image, change([&](State& state) { return state.create_image(now, create); }));
  log::info("coordinator: image upload image={} region={} base={} bytes={} upload={}",
            image.name.value, image.region.value, image.base.value, image.bytes, image.upload);
  return image;
}

Status Cluster::checkpoint_image(const ImageId& id, const ImageProgress& progress) {
  return change([&](State& state) { return state.checkpoint_image(id, progress); });
}

Status Cluster::complete_image(const ImageId& id, const ImageProgress& progress) {
  FARPAGE_TRY_VOID(change([&](State& state) { return state.complete_image(id, progress); }));
  log::info("coordinator: image complete image={} pages={} digest={}", id.value, progress.pages,
            progress.digest);
  return {};
}

Status Cluster::remove_image(const ImageId& id, bool force) {
  FARPAGE_TRY(image, this->image(id));
  {
    FARPAGE_TRY(hold, gate_.enter(image.region, kGateTimeout));
    FARPAGE_TRY_VOID(change([&](State& state) { return state.remove_image(id, force); }));
  }
  log::info("coordinator: image removed image={} force={}", id.value, force);
  revoke_now(image.region);
  return {};
}

Result<ImageInfo> Cluster::image(const ImageId& id) const {
  const MutexLock lock(mutex_);
  return state_.image(id);
}

std::vector<ImageInfo> Cluster::images() const {
  const MutexLock lock(mutex_);
  return state_.images();
}

Result<OpenedImage> Cluster::open_image(const ImageId& id, const ImageReader& reader) {
  const MutexLock lock(mutex_);
  return state_.open_image(clock_.now(), id, reader);
}

Result<ReaderHeard> Cluster::renew_reader(const ImageId& id, const ImageReader& reader) {
  const MutexLock lock(mutex_);
  return state_.renew_reader(clock_.now(), id, reader);
}

Status Cluster::close_reader(const ImageId& id, const ImageReader& reader) {
  const MutexLock lock(mutex_);
  return state_.close_reader(id, reader);
}

void Cluster::repair_images() {
  std::vector<ImageRepair> repairs;
  {
    const MutexLock lock(mutex_);
    repairs = state_.begin_image_repairs();
  }
  std::set<std::string> silent;
  for (const ImageRepair& repair : repairs) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const Status asked = silent.count(repair.agent_url) == 0
                             ? agents_->repair_image(repair.agent_url, repair.image)
                             : fail(ErrorCode::kUnavailable, "it has not answered before");
    if (asked) continue;
    if (is_unanswered(asked)) silent.insert(repair.agent_url);
    log::warn("coordinator: image repair not begun image={} node={} reason=\"{}\"",
              repair.image.value, repair.node.value, asked.error().message());
    const MutexLock lock(mutex_);
    state_.refuse_image_repair(repair);
  }
}

}  // namespace farpage::coordinator
