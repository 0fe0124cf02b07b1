#include "pager/fork/backing_region.h"

#include "base/check.h"

namespace farpage::pager {
namespace {

Result<std::unique_ptr<LeaseMap>> make_leases(uint64_t number, uint64_t pages, uint64_t slab_bytes,
                                              const Succession& succession) {
  FARPAGE_TRY(kept, succession.memory(Succession::leases_name(number),
                                      LeaseMap::kept_bytes(pages, slab_bytes)));
  FARPAGE_TRY(checksums, succession.memory(Succession::checksums_name(number),
                                           LeaseMap::checksums_bytes(pages, slab_bytes)));
  return LeaseMap::create(pages, slab_bytes, std::move(kept), SlotChecksums(std::move(checksums)));
}

}  // namespace

Result<std::shared_ptr<BackingRegion>> BackingRegion::create(std::shared_ptr<ForkGroup> fork_group,
                                                             const PagerOptions& options,
                                                             uint64_t pages,
                                                             coordinator::Client& client,
                                                             const Succession& succession) {
  const uint64_t number = succession.next_number();
  RegionRecord record{.group = fork_group->number(),
                      .id = {},
                      .pages = pages,
                      .slab_bytes = options.slab_bytes,
                      .name = options.name,
                      .info = {}};
  FARPAGE_TRY(leases, make_leases(number, pages, options.slab_bytes, succession));
  FARPAGE_TRY(id, fork_group->add_backing_region(*leases));
  record.id = id;
  std::shared_ptr<BackingRegion> region(new BackingRegion(
      std::move(fork_group), number, std::move(record), std::move(leases), succession));
  region->make_borrower(options, client);
  FARPAGE_TRY_VOID(succession.put_region(number, region->record_));
  return region;
}

Result<std::shared_ptr<BackingRegion>> BackingRegion::restore(
    std::shared_ptr<ForkGroup> fork_group, const PagerOptions& options, uint64_t number,
    const RegionRecord& record, coordinator::Client& client, const Succession& succession) {
  FARPAGE_TRY(leases, make_leases(number, record.pages, record.slab_bytes, succession));
  fork_group->restore_backing_region(record.id, *leases);
  std::shared_ptr<BackingRegion> region(
      new BackingRegion(std::move(fork_group), number, record, std::move(leases), succession));
  region->make_borrower(options, client);
  region->borrower_->take_over(record.info);
  return region;
}

// It has no record: a successor gets it from whoever has the pages.
Result<std::shared_ptr<BackingRegion>> BackingRegion::of_stored(
    std::shared_ptr<ForkGroup> fork_group, std::shared_ptr<const StoredPages> stored,
    std::unique_ptr<LeaseMap> leases, const Succession& succession) {
  FARPAGE_TRY(id, fork_group->add_backing_region(*leases));
  FARPAGE_CHECK(id == kOfStored, "backing region %u is not the first one", unsigned{id.value});
  const RegionRecord record{.group = fork_group->number(),
                            .id = id,
                            .pages = 0,
                            .slab_bytes = stored->slab_bytes(),
                            .name = {},
                            .info = {}};
  std::shared_ptr<BackingRegion> region(new BackingRegion(
      std::move(fork_group), succession.next_number(), record, std::move(leases), succession));
  region->stored_ = std::move(stored);
  return region;
}

void BackingRegion::make_borrower(const PagerOptions& options, coordinator::Client& client) {
  const auto keep = [this](const coordinator::RegionInfo& info) {
    RegionRecord record = record_;
    record.info = info;
    record.info->leases.clear();
    return succession_.put_region(number_, record);
  };
  borrower_ = std::make_unique<Borrower>(options, record_.name, *leases_, fork_group_->nodes(),
                                         client, keep);
}

BackingRegion::~BackingRegion() {
  borrower_.reset();
  fork_group_->remove_backing_region(record_.id);
  succession_.erase_region(number_);
}

}  // namespace farpage::pager
