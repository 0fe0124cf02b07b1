// BackingRegion: the memory of one region on the nodes, as a place for page contents.
//
// The identity mapping (lease_map.h) gives the place of page p of a backing region. A process that
// never forks has one backing region. After a fork, parent and child both read remote pages from
// the backing regions that store them. Nothing is copied: a process that modifies such a page
// writes it back to another backing region of its own. See "Pages shared by a fork" in
// design-notes.
#pragma once

#include <memory>
#include <vector>

#include "pager/fork/fork_group.h"
#include "pager/links/borrower.h"
#include "pager/links/lease_map.h"
#include "pager/links/stored_pages.h"

namespace farpage::pager {

// Threads: leases as LeaseMap says; the borrower has its own. Invariants:
//  1. only the pager that made a backing region writes to it: no late WRITE of another session can
//  follow
//     (see "Fencing late WRITEs" in design-notes);
//  2. a slot of it is written only while no other process of the fork group refers to that slot
//     (BackingRegions::writable);
//  3. it exists, and its region is renewed, while any process of the fork group holds it.
class BackingRegion {
 public:
  // The number of the backing region in its fork group is free again after its destructor. The
  // succession outlives it.
  static Result<std::shared_ptr<BackingRegion>> create(std::shared_ptr<ForkGroup> fork_group,
                                                       const PagerOptions& options, uint64_t pages,
                                                       coordinator::Client& client,
                                                       const Succession& succession);
  // As a dead process has left it, with its leases. `options`: of the engine.
  static Result<std::shared_ptr<BackingRegion>> restore(std::shared_ptr<ForkGroup> fork_group,
                                                        const PagerOptions& options,
                                                        uint64_t number, const RegionRecord& record,
                                                        coordinator::Client& client,
                                                        const Succession& succession);
  // Pages that others have stored, and that are only read. It is the first backing region of its
  // fork group, also after the death of a process. `leases` are those of `stored`.
  static Result<std::shared_ptr<BackingRegion>> of_stored(std::shared_ptr<ForkGroup> fork_group,
                                                          std::shared_ptr<const StoredPages> stored,
                                                          std::unique_ptr<LeaseMap> leases,
                                                          const Succession& succession);
  static constexpr BackingId kOfStored{0};
  ~BackingRegion();
  BackingRegion(const BackingRegion&) = delete;
  BackingRegion& operator=(const BackingRegion&) = delete;

  BackingId id() const { return record_.id; }
  // Of no other one, in this process and its predecessors.
  uint64_t number() const { return number_; }
  LeaseMap& leases() const { return *leases_; }
  Borrower& borrower() { return *borrower_; }  // of_stored() has none
  // A page of this slab will need a slot here.
  void want(PageIndex page) {
    if (leases_->touch(page)) borrower_->ring();
  }

 private:
  BackingRegion(std::shared_ptr<ForkGroup> fork_group, uint64_t number, RegionRecord record,
                std::unique_ptr<LeaseMap> leases, const Succession& succession)
      : fork_group_(std::move(fork_group)),
        number_(number),
        record_(std::move(record)),
        leases_(std::move(leases)),
        succession_(succession) {}
  void make_borrower(const PagerOptions& options, coordinator::Client& client);

  const std::shared_ptr<ForkGroup> fork_group_;
  const uint64_t number_;
  const RegionRecord record_;                  // but for what the coordinator has made
  std::shared_ptr<const StoredPages> stored_;  // mostly null
  const std::unique_ptr<LeaseMap> leases_;
  const Succession& succession_;
  std::unique_ptr<Borrower> borrower_;
};

using BackingRegionList = std::vector<std::shared_ptr<BackingRegion>>;

}  // namespace farpage::pager
