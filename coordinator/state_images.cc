#include <fmt/format.h>

#include <array>
#include <utility>

#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {

tl::unexpected<Error> no_such_image(const ImageId& id) {
  return fail(ErrorCode::kNotFound, fmt::format("no image '{}'", id.value));
}

// "a, b and 3 more"
std::string names_in_a_row(const std::vector<std::string>& names) {
  constexpr size_t kMaxNamed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > kMaxNamed) text += fmt::format(" and {} more", names.size() - kMaxNamed);
  return text;
}

}  // namespace

std::string_view to_string(ImageState state) {
  switch (state) {
    case ImageState::kUploading:
      return "uploading";
    case ImageState::kComplete:
      return "complete";
  }
  return "unknown";
}

// Records whose region is gone, or whose base is, are dropped: a store that was cut off.
void State::restore_images(const Snapshot& snapshot) {
  for (const ImageRecord& record : snapshot.images) images_[record.id] = Image{record, {}};
  for (bool dropped = true; dropped;) {
    dropped = false;
    for (auto it = images_.begin(); it != images_.end();) {
      const ImageRecord& record = it->second.record;
      const bool has_base = record.base.value.empty() || images_.count(record.base) != 0;
      if (regions_.count(record.region) != 0 && has_base) {
        ++it;
        continue;
      }
      changes_.images[it->first] = std::nullopt;
      it = images_.erase(it);
      dropped = true;
    }
  }
  for (const auto& [id, image] : images_) {
    Region& region = regions_.at(image.record.region);
    region.image = id;
    region.leases_version = events_.last();
  }
}

Result<State::Image*> State::find_image(const ImageId& id) {
  const auto it = images_.find(id);
  if (it == images_.end()) return no_such_image(id);
  return &it->second;
}

Result<State::Image*> State::find_upload(const ImageId& id, uint64_t upload) {
  FARPAGE_TRY(image, find_image(id));
  if (image->record.upload != upload)
    return fail(ErrorCode::kConflict,
                fmt::format("another push of image '{}' has taken over", id.value));
  return image;
}

uint32_t State::generations_of(const Image& image) const {
  uint32_t generations = 1;
  for (ImageId base = image.record.base; !base.value.empty(); ++generations)
    base = images_.at(base).record.base;
  return generations;
}

ImageInfo State::info_of(const Image& image) const {
  const ImageRecord& record = image.record;
  const Region& region = regions_.at(record.region);
  ImageInfo info;
  info.name = record.id;
  info.state = record.state;
  info.base = record.base;
  info.bytes = record.bytes;
  info.replicas = region.record.replicas;
  info.slab_bytes = region.record.slab_bytes;
  info.generations = generations_of(image);
  info.region = record.region;
  info.upload = record.upload;
  info.pages = record.pages;
  info.digest = record.digest;
  info.readers = static_cast<uint32_t>(image.readers.size());
  for (const auto& [key, lease] : region.leases) info.lost_leases += lease.lost ? 1 : 0;
  return info;
}

Status State::check_base(const ImageCreate& create) const {
  if (create.base.value.empty()) return {};
  const auto base = images_.find(create.base);
  if (base == images_.end())
    return fail(ErrorCode::kNotFound,
                fmt::format("no image '{}', which was to be the base", create.base.value));
  if (base->second.record.state != ImageState::kComplete)
    return fail(ErrorCode::kConflict,
                fmt::format("image '{}', which was to be the base, is still being uploaded",
                            create.base.value));
  if (generations_of(base->second) >= kMaxGenerations)
    return fail(ErrorCode::kExhausted,
                fmt::format("image '{}' has {} generations already: push a whole image instead",
                            create.base.value, kMaxGenerations));
  return {};
}

// Over verbs, the keys of a region serve the queue pairs of its group only, and a reader has images
// of several regions: they all have one group.
uint32_t State::image_session_group() {
  if (!images_.empty())
    return regions_.at(images_.begin()->second.record.region).record.session_group;
  return static_cast<uint32_t>(placement_.next_random()) | 1;
}

Result<ImageInfo> State::create_image(Instant now, const ImageCreate& create) {
  if (const auto it = images_.find(create.name); it != images_.end()) {
    ImageRecord& record = it->second.record;
    if (record.state == ImageState::kComplete)
      return fail(ErrorCode::kConflict,
                  fmt::format("image '{}' exists already, and does not change: remove it, or "
                              "choose another name",
                              create.name.value));
    const RegionRecord& region = regions_.at(record.region).record;
    if (record.base != create.base || record.bytes != create.bytes ||
        region.replicas != create.replicas || region.slab_bytes != create.slab_bytes)
      return fail(ErrorCode::kConflict,
                  fmt::format("an upload of image '{}' was begun with another base, size, number "
                              "of replicas or slab size: go on with the same, or remove it",
                              create.name.value));
    ++record.upload;
    changes_.images[create.name] = record;
    return info_of(it->second);
  }
  if (images_.size() >= options_.max_images)
    return fail(ErrorCode::kExhausted,
                fmt::format("there are already {} images: remove one first", images_.size()));
  FARPAGE_TRY_VOID(check_base(create));
  const RegionCreate region{.name = create.name.value,
                            .bytes = 0,
                            .replicas = create.replicas,
                            .slab_bytes = create.slab_bytes,
                            .session_group = image_session_group()};
  FARPAGE_TRY(region_id, create_region(now, region));
  regions_.at(region_id).image = create.name;
  Image& image = images_[create.name];
  image.record.id = create.name;
  image.record.region = region_id;
  image.record.base = create.base;
  image.record.bytes = create.bytes;
  changes_.images[create.name] = image.record;
  return info_of(image);
}

Status State::checkpoint_image(const ImageId& id, const ImageProgress& progress) {
  FARPAGE_TRY(image, find_upload(id, progress.upload));
  if (image->record.state == ImageState::kComplete)
    return fail(ErrorCode::kConflict, fmt::format("image '{}' is complete", id.value));
  image->record.pages = progress.pages;
  image->record.digest = progress.digest;
  changes_.images[id] = image->record;
  return {};
}

Status State::complete_image(const ImageId& id, const ImageProgress& progress) {
  FARPAGE_TRY(image, find_upload(id, progress.upload));
  ImageRecord& record = image->record;
  if (record.state == ImageState::kComplete) {
    if (record.pages == progress.pages && record.digest == progress.digest) return {};
    return fail(ErrorCode::kConflict, fmt::format("image '{}' is complete already", id.value));
  }
  for (const auto& [key, lease] : regions_.at(record.region).leases)
    if (lease.lost)
      return fail(ErrorCode::kConflict,
                  fmt::format("node '{}' has lost a part of image '{}': remove the image, and push "
                              "it again",
                              lease.node.value, id.value));
  record.state = ImageState::kComplete;
  record.pages = progress.pages;
  record.digest = progress.digest;
  changes_.images[id] = record;
  return {};
}

Status State::remove_image(const ImageId& id, bool force) {
  FARPAGE_TRY(image, find_image(id));
  std::vector<std::string> dependents;
  for (const auto& [other_id, other] : images_)
    if (other.record.base == id) dependents.push_back(other_id.value);
  if (!dependents.empty())
    return fail(ErrorCode::kConflict, fmt::format("image '{}' is the base of {}: remove that first",
                                                  id.value, names_in_a_row(dependents)));
  // Who uploads it learns of its end at its next checkpoint.
  const bool is_read = image->record.state == ImageState::kComplete && !image->readers.empty();
  if (is_read && !force) {
    std::vector<std::string> readers;
    for (const auto& [name, heard] : image->readers) readers.push_back(name);
    return fail(
        ErrorCode::kConflict,
        fmt::format("image '{}' is being read by {}: end that first, or use ?force=true (--force), "
                    "after which pages that a guest has not touched yet end in SIGBUS",
                    id.value, names_in_a_row(readers)));
  }
  const auto region = regions_.find(image->record.region);
  region->second.image = {};
  erase_region(region);
  images_.erase(id);
  changes_.images[id] = std::nullopt;
  return {};
}

Result<ImageInfo> State::image(const ImageId& id) const {
  const auto it = images_.find(id);
  if (it == images_.end()) return no_such_image(id);
  return info_of(it->second);
}

std::vector<ImageInfo> State::images() const {
  std::vector<ImageInfo> list;
  for (const auto& [id, image] : images_) list.push_back(info_of(image));
  return list;
}

// Those of its bases count, too.
uint64_t State::leases_version_of(const Image& image) const {
  uint64_t version = 0;
  for (const Image* generation = &image;;) {
    version = std::max(version, regions_.at(generation->record.region).leases_version);
    if (generation->record.base.value.empty()) return version;
    generation = &images_.at(generation->record.base);
  }
}

Result<OpenedImage> State::open_image(Instant now, const ImageId& id, const ImageReader& reader) {
  FARPAGE_TRY_VOID(renew_reader(now, id, reader));
  const Image& image = images_.at(id);
  OpenedImage opened;
  opened.image = info_of(image);
  opened.session_group = regions_.at(image.record.region).record.session_group;
  opened.time_to_live = std::chrono::duration_cast<Milliseconds>(options_.region_time_to_live);
  opened.leases_version = leases_version_of(image);
  for (const Image* generation = &image;;) {
    opened.regions.push_back(info_of(regions_.at(generation->record.region), options_));
    if (generation->record.base.value.empty()) return opened;
    generation = &images_.at(generation->record.base);
  }
}

// Not persistent: the readers of a coordinator that has restarted are there after their next
// renewal.
Result<ReaderHeard> State::renew_reader(Instant now, const ImageId& id, const ImageReader& reader) {
  FARPAGE_TRY(image, find_image(id));
  if (image->readers.size() >= kMaxReadersPerImage && image->readers.count(reader.name) == 0)
    return fail(ErrorCode::kExhausted,
                fmt::format("image '{}' has {} readers already", id.value, image->readers.size()));
  image->readers[reader.name] = now;
  return ReaderHeard{leases_version_of(*image)};
}

Status State::close_reader(const ImageId& id, const ImageReader& reader) {
  FARPAGE_TRY(image, find_image(id));
  image->readers.erase(reader.name);
  return {};
}

void State::expire_readers(Instant now) {
  for (auto& [id, image] : images_)
    std::erase_if(image.readers, [&](const auto& reader) {
      return silence(now, reader.second) > options_.region_time_to_live;
    });
}

bool State::is_repaired(const Region& region) const {
  return region.image.value.empty() ||
         images_.at(region.image).record.state == ImageState::kComplete;
}

std::set<NodeId> State::leaving_nodes() const {
  std::set<NodeId> leaving;
  for (const auto& [id, node] : nodes_)
    if (is_leaving(state_of(node))) leaving.insert(id);
  return leaving;
}

// The same as before, unless that one is away, or does nothing: it may not reach the replicas. Else
// one with memory, if there is one: the copies of a disk's node wait for that.
State::Node* State::choose_repairer(Image& image, const LeaseCounts& lacking) {
  constexpr uint32_t kPatience = 3;
  const uint64_t left = lacking.degraded + lacking.moving;
  const bool in_vain = left == image.repair_left && lacking.repairing == 0;
  image.repair_left = left;
  image.asked_in_vain = in_vain ? image.asked_in_vain + 1 : 0;
  if (in_vain && image.asked_in_vain % kPatience == 0) avoid_repairer(image);
  const auto alive = [this](const NodeId& id) {
    const auto node = nodes_.find(id);
    const bool is_alive = node != nodes_.end() && state_of(node->second) == NodeState::kAlive;
    return is_alive ? &node->second : nullptr;
  };
  if (Node* const same = alive(image.repairer)) return same;
  std::array<std::vector<NodeId>, 2> candidates;  // with memory, with a disk
  for (const auto& [id, node] : nodes_)
    if (state_of(node) == NodeState::kAlive && id != image.avoided)
      candidates[is_disk(node) ? 1 : 0].push_back(id);
  const std::vector<NodeId>& best = candidates[candidates[0].empty() ? 1 : 0];
  image.repairer = best.empty() ? image.avoided : best[placement_.next_random() % best.size()];
  return alive(image.repairer);
}

void State::avoid_repairer(Image& image) {
  image.avoided = std::exchange(image.repairer, {});
}

// Some node has room for one of the replicas that are to be made. Of many, the first are looked at.
bool State::can_repair(const Region& region, const std::set<NodeId>& leaving) const {
  constexpr size_t kMostLookedAt = 64;
  size_t looked_at = 0;
  for (const auto& replica : region.leases) {
    const Lease& lease = replica.second;
    if (lease.filling) return true;
    if (!lease.lost && !lease.stale && !lease.moving && leaving.count(lease.node) == 0) continue;
    if (++looked_at > kMostLookedAt || any_may_hold(region, lease, true)) return true;
  }
  return false;
}

// Less often while it is in vain.
std::vector<ImageRepair> State::begin_image_repairs() {
  constexpr Seconds kAskAgain{5};
  constexpr uint32_t kMostPatience = 12;
  const std::set<NodeId> leaving = leaving_nodes();
  std::vector<ImageRepair> repairs;
  for (auto& [id, image] : images_) {
    if (image.record.state != ImageState::kComplete || image.repair_due > last_tick_) continue;
    image.repair_due = last_tick_ + kAskAgain;
    const Region& region = regions_.at(image.record.region);
    const LeaseCounts counts = counts_of(region, leaving);
    if (counts.degraded + counts.moving + counts.repairing == 0) continue;
    if (!can_repair(region, leaving)) continue;
    const Node* const node = choose_repairer(image, counts);
    image.repair_due += kAskAgain * std::min(image.asked_in_vain, kMostPatience);
    if (node != nullptr) repairs.push_back({id, node->record.join.id, node->record.join.agent_url});
  }
  return repairs;
}

void State::refuse_image_repair(const ImageRepair& repair) {
  const auto image = images_.find(repair.image);
  if (image == images_.end() || image->second.repairer != repair.node) return;
  avoid_repairer(image->second);
}

}  // namespace farpage::coordinator
