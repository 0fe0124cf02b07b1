#include "pager/fork/backing_region.h"

namespace farpage::pager {

Result<std::shared_ptr<BackingRegion>> BackingRegion::create(std::shared_ptr<ForkGroup> fork_group,
                                                             const PagerOptions& options,
                                                             uint64_t pages,
                                                             coordinator::Client& client,
                                                             RegionOwner& owner) {
  FARPAGE_TRY(leases, LeaseMap::create(pages, options.slab_bytes));
  FARPAGE_TRY(id, fork_group->add_backing_region(*leases));
  std::shared_ptr<BackingRegion> backing_region(
      new BackingRegion(std::move(fork_group), id, std::move(leases)));
  backing_region->borrower_ = std::make_unique<Borrower>(
      options, *backing_region->leases_, backing_region->fork_group_->nodes(), client, owner);
  return backing_region;
}

BackingRegion::~BackingRegion() {
  borrower_.reset();
  fork_group_->remove_backing_region(id_);
}

}  // namespace farpage::pager
