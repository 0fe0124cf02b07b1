// StoredPages: pages that lie in regions which an engine only reads: those of an image, from which
// a target is restored (Engine::restore). In place of the identity mapping there is a map from
// pages to places, and each page has a checksum.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "coordinator/api.h"
#include "pager/links/lease_map.h"

namespace farpage::pager {

// Threads: any. It does not change.
class StoredPages {
 public:
  StoredPages() = default;
  virtual ~StoredPages() = default;
  StoredPages(const StoredPages&) = delete;
  StoredPages& operator=(const StoredPages&) = delete;

  // The places: the pages of so many slabs, all of one size, each with its leases. Somebody else
  // keeps the leases alive.
  virtual uint64_t slabs() const = 0;
  virtual uint64_t slab_bytes() const = 0;
  // Those of the beginning: refresh_leases() brings others.
  virtual const std::vector<coordinator::Lease>& leases() const = 0;

  // Where a page of the target lies among the places; nullopt: nowhere, because it is zeros, or
  // there is no such page.
  virtual std::optional<PageIndex> place_of(PageIndex page) const = 0;
  // Of a page that lies somewhere: are these its bytes?
  virtual bool is_right(PageIndex page, std::span<const std::byte> bytes) const = 0;
};

// Publishes the leases that the map lacks. `index_of`: of a node; nullopt: it has left, and its
// replicas are lost ones. kUnavailable: no replica of a slab is left; with DeadSlabs::kLeaveOut
// that slab gets no lease. kInvalid: the leases are not those of such a map.
using IndexOfNode = std::function<Result<std::optional<NodeIndex>>(const NodeId&)>;
enum class DeadSlabs : uint8_t { kRefuse, kLeaveOut };
Status publish_leases(const std::vector<coordinator::Lease>& leases, LeaseMap& map,
                      const IndexOfNode& index_of, DeadSlabs dead = DeadSlabs::kRefuse);
// Of a map that has them all, which may have readers: `leases` are what the coordinator has now.
// Replicas that were made since are added, and those that they have replaced are withdrawn.
Status refresh_leases(const std::vector<coordinator::Lease>& leases, LeaseMap& map,
                      const IndexOfNode& index_of);

}  // namespace farpage::pager
