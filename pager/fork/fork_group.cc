#include "pager/fork/fork_group.h"

#include <algorithm>

#include "base/check.h"
#include "pager/fork/backing_region.h"

namespace farpage::pager {

Result<std::shared_ptr<ForkGroup>> ForkGroup::create(std::shared_ptr<NodeDirectory> nodes,
                                                     uint64_t number) {
  FARPAGE_TRY(memory, Mapping::anonymous(kMaxBackingRegions * sizeof(LeaseMapPointer)));
  return std::shared_ptr<ForkGroup>(new ForkGroup(std::move(nodes), number, std::move(memory)));
}

Result<BackingId> ForkGroup::add_backing_region(LeaseMap& leases) {
  const MutexLock lock(mutex_);
  for (uint16_t i = 0; i < kMaxBackingRegions; ++i) {
    if (backing_regions()[i].load(std::memory_order_relaxed) != nullptr) continue;
    backing_regions()[i].store(&leases, std::memory_order_release);
    return BackingId{i};
  }
  return fail(ErrorCode::kExhausted, "the processes of one fork group have " +
                                         std::to_string(kMaxBackingRegions) +
                                         " backing regions already");
}

void ForkGroup::restore_backing_region(BackingId backing_region, LeaseMap& leases) {
  const MutexLock lock(mutex_);
  backing_regions()[backing_region.value].store(&leases, std::memory_order_release);
}

void ForkGroup::remove_backing_region(BackingId backing_region) {
  const MutexLock lock(mutex_);
  backing_regions()[backing_region.value].store(nullptr, std::memory_order_release);
}

bool ForkGroup::refers_elsewhere(const ProcessImage& self, BackingId backing_region,
                                 PageIndex page) const {
  return std::any_of(images_.begin(), images_.end(), [&](const ProcessImage* image) {
    if (image == &self) return false;
    const PageWord word = image->table().load(page);
    return word.backing_region() == backing_region && refers_to_slot(word);
  });
}

void ForkGroup::add(const ProcessImage& image) {
  images_.push_back(&image);
  processes_.store(images_.size(), std::memory_order_relaxed);
}

void ForkGroup::remove(const ProcessImage& image) {
  std::erase(images_, &image);
  processes_.store(images_.size(), std::memory_order_relaxed);
}

Result<PageTable> ProcessImage::make_table(const Kept& kept, uint64_t pages) {
  if (kept.succession == nullptr) return PageTable::create(pages);
  FARPAGE_TRY(memory, kept.succession->memory(Succession::table_name(kept.table),
                                              PageTable::memory_bytes(pages)));
  return PageTable::create(pages, std::move(memory));
}

void ProcessImage::join() {
  const MutexLock lock(fork_group_->mutex_);
  fork_group_->add(*this);
}

Result<std::unique_ptr<ProcessImage>> ProcessImage::create(uint64_t pages,
                                                           std::shared_ptr<NodeDirectory> nodes,
                                                           const Succession& succession) {
  const Kept kept{&succession, succession.next_number()};
  FARPAGE_TRY(table, make_table(kept, pages));
  FARPAGE_TRY(fork_group, ForkGroup::create(std::move(nodes), succession.next_number()));
  std::unique_ptr<ProcessImage> image(
      new ProcessImage(std::move(fork_group), std::move(table), kept));
  image->join();
  return image;
}

Result<std::unique_ptr<ProcessImage>> ProcessImage::restore(
    const TargetRecord& record, std::shared_ptr<ForkGroup> fork_group,
    std::vector<std::shared_ptr<BackingRegion>> backing_regions, const Succession& succession) {
  const Kept kept{&succession, record.table};
  FARPAGE_TRY(table, make_table(kept, record.pages));
  std::unique_ptr<ProcessImage> image(
      new ProcessImage(std::move(fork_group), std::move(table), kept));
  image->backing_regions_ = std::move(backing_regions);
  image->join();
  return image;
}

TargetRecord ProcessImage::record() const {
  TargetRecord record{.group = fork_group_->number(),
                      .table = kept_.table,
                      .pages = table_.pages(),
                      .regions = {},
                      .own = {}};
  for (const auto& region : backing_regions_) record.regions.push_back(region->number());
  return record;
}

Result<std::unique_ptr<ProcessImage>> ProcessImage::copy_of(
    const ProcessImage& parent, const std::function<PageWord(PageIndex, PageWord)>& word_of,
    const Succession* succession) {
  const Kept kept{succession, succession == nullptr ? 0 : succession->next_number()};
  FARPAGE_TRY(table, make_table(kept, parent.table_.pages()));
  std::unique_ptr<ProcessImage> image(new ProcessImage(parent.fork_group_, std::move(table), kept));
  image->backing_regions_ = parent.backing_regions_;
  const MutexLock lock(image->fork_group_->mutex_);
  // Pages that are Empty now and used later have no slot to refer to.
  const PageTable& from = parent.table_;
  for (uint64_t i = from.next_used(0); i < from.pages(); i = from.next_used(i + 1)) {
    const PageWord word = word_of(PageIndex{i}, from.load(PageIndex{i}));
    if (word.state() != PageState::kEmpty) image->table_.place(PageIndex{i}, word);
  }
  image->fork_group_->add(*image);
  return image;
}

ProcessImage::~ProcessImage() {
  {
    const MutexLock lock(fork_group_->mutex_);
    fork_group_->remove(*this);
  }
  if (kept_.succession != nullptr)
    kept_.succession->drop_memory(Succession::table_name(kept_.table));
}

}  // namespace farpage::pager
