// Layer: the memory of one region on the nodes, as a place for page contents.
//
// The identity mapping (lease_map.h) gives the place of page p of a layer. A process that never
// forks has one layer. After a fork, parent and child both read remote pages from the layers that
// store them. Nothing is copied: a process that modifies such a page writes it back to another
// layer of its own. See "Pages shared by a fork" in design-notes.
#pragma once

#include <memory>

#include "pager/borrower.h"
#include "pager/family.h"
#include "pager/lease_map.h"

namespace farpage::pager {

// Threads: leases as LeaseMap says; the borrower has its own. Invariants:
//  1. only the pager that made a layer writes to it: no late WRITE of another session can follow
//     (see "Fencing late WRITEs" in design-notes);
//  2. a slot of it is written only while no other process of the family refers to that slot
//     (LayerSet::writable);
//  3. it exists, and its region is renewed, while any process of the family holds it.
class Layer {
 public:
  // The number of the layer in its family is free again after its destructor.
  static Result<std::shared_ptr<Layer>> create(std::shared_ptr<Family> family,
                                               const PagerOptions& options, uint64_t pages,
                                               coordinator::Client& client, LayerOwner& owner);
  ~Layer();
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  LayerId id() const { return id_; }
  LeaseMap& leases() const { return *leases_; }
  Borrower& borrower() { return *borrower_; }
  // A page of this slab will need a slot here.
  void want(PageIndex page) {
    if (leases_->touch(page)) borrower_->ring();
  }

 private:
  Layer(std::shared_ptr<Family> family, LayerId id, std::unique_ptr<LeaseMap> leases)
      : family_(std::move(family)), id_(id), leases_(std::move(leases)) {}

  const std::shared_ptr<Family> family_;
  const LayerId id_;
  const std::unique_ptr<LeaseMap> leases_;
  std::unique_ptr<Borrower> borrower_;
};

}  // namespace farpage::pager
