#include "image/image_repair.h"

#include <algorithm>
#include <utility>

#include "base/doorbell.h"
#include "base/unanswered.h"
#include "image/image.h"
#include "image/image_links.h"
#include "image/page_reads.h"
#include "image/reader_name.h"
#include "pager/links/copy_gate.h"
#include "pager/links/region_repair.h"
#include "pager/links/repairer.h"
#include "rdma/session.h"

namespace farpage::image {
namespace {

constexpr size_t kMapPort = 0;
constexpr size_t kCopyPort = 1;
constexpr size_t kMapBytes = size_t{16} * PageReads::kMaxRunPages << kPageShift;
constexpr Seconds kBetweenViews{5};
constexpr Milliseconds kViewRetry{500};
constexpr Milliseconds kLongestWait{200};  // until `stopping` is looked at

// The slots of the image's own region, with their checksums. Slabs without a replica have no lease.
// A stale replica is one that the coordinator wants replaced, whatever it has.
Result<std::unique_ptr<pager::LeaseMap>> slots_of(const Image& image,
                                                  const coordinator::RegionInfo& region,
                                                  ImageLinks& links) {
  const uint64_t pages = image.generations().front().stored_pages;
  const uint64_t slab_bytes = region.slab_bytes;
  FARPAGE_TRY(kept, Mapping::anonymous(pager::LeaseMap::kept_bytes(pages, slab_bytes)));
  FARPAGE_TRY(memory, Mapping::anonymous(pager::LeaseMap::checksums_bytes(pages, slab_bytes)));
  FARPAGE_TRY(leases,
              pager::LeaseMap::create(pages, slab_bytes, std::move(kept),
                                      pager::SlotChecksums(std::move(memory), kChecksumSeed)));
  for (uint64_t page = 0; page < image.pages(); ++page) {
    const PageEntry& entry = image.map()[page];
    if (entry.is_stored() && entry.generation == 0)
      leases->checksums().set(PageIndex{entry.slot}, entry.checksum);
  }
  const std::span<const std::byte> map = image.map().encode();
  for (uint64_t i = 0; i < image.map_pages(); ++i)
    leases->checksums().set(PageIndex{image.first_map_page() + i},
                            checksum_of(map.subspan(i << kPageShift, kPageBytes)));
  std::vector<coordinator::Lease> held = region.leases;
  for (coordinator::Lease& lease : held) lease.lost = lease.lost || lease.stale;
  FARPAGE_TRY_VOID(links.adopt(held, *leases, pager::DeadSlabs::kLeaveOut));
  return leases;
}

// Threads: one, and the repairer's.
class Repair {
 public:
  Repair(const RepairOptions& options, RegionId region, pager::LeaseMap& leases, ImageLinks& links,
         coordinator::Client& client, Doorbell bell)
      : options_(options),
        region_(std::move(region)),
        leases_(leases),
        links_(links),
        client_(client),
        bell_(std::move(bell)),
        repairer_({.rate = options.rate}, gate_, links.nodes(), links.peers(),
                  links.port(kCopyPort)),
        repair_({leases_, links.nodes(), client,
                 [this](const NodeId& id) { return node_index(id); }, [this] { bell_.ring(); }}) {}

  Result<Repaired> run(const std::atomic<bool>& stopping) {
    Status failure;
    Instant progress_at = SteadyClock::read();
    while (!stopping.load(std::memory_order_relaxed)) {
      failure = look();
      if (!failure && !is_unanswered(failure)) break;
      if (is_contested_ || view_.id.value.empty()) break;
      const Instant due = repair_.serve(view_, repairer_);
      if (repair_.is_done(view_.replicas, repairer_)) break;
      const Instant now = SteadyClock::read();
      if (repair_.is_filling()) progress_at = now;
      if (now - progress_at > options_.patience) break;
      const auto left = std::chrono::duration_cast<Milliseconds>(due - now);
      (void)bell_.wait(std::clamp(left, Milliseconds(1), kLongestWait));
    }
    repairer_.remove(leases_);
    if (!failure) return tl::unexpected(failure.error());
    coordinator::Counters counters;
    repair_.count(counters, view_);
    return Repaired{counters["farpage_repair_slabs_total"], repairer_.copied_bytes()};
  }

 private:
  Result<pager::NodeIndex> node_index(const NodeId& id) {
    FARPAGE_TRY(index, links_.node_index(id));
    if (index) return *index;
    return fail(ErrorCode::kUnavailable, "node " + id.value + " has left since it lent a slab");
  }

  // The coordinator's view of the region and of the nodes: now and then, and when it has refused
  // what the former one allows. What fills at the first view was left by another process. What
  // fills later is another's, and so is a replica that the map lacks: then the image is that one's.
  Status look() {
    const Instant now = SteadyClock::read();
    if (!repair_.take_old_view() && now < view_due_) return {};
    view_due_ = now + kViewRetry;
    FARPAGE_TRY(view, client_.region(region_));
    for (const NodeId& id : links_.nodes().ids()) {
      const Result<coordinator::NodeInfo> node = client_.node(id);
      if (node) FARPAGE_TRY_VOID(links_.nodes().put(*node));
      if (!node && node.error().code != ErrorCode::kNotFound) return tl::unexpected(node.error());
    }
    is_contested_ = has_stranger(view) || (!view_.id.value.empty() && repair_.is_contested(view));
    view_ = std::move(view);
    view_due_ = now + kBetweenViews;
    if (is_contested_) return {};
    for (const coordinator::Lease& lease : view_.leases) lose(lease);
    repair_.compare(view_);
    return {};
  }

  const pager::ReplicaLease* find(const coordinator::Lease& lease) const {
    const pager::SlabLease* const held =
        lease.slab.value < leases_.slabs() ? leases_.find(lease.slab) : nullptr;
    const auto node = links_.nodes().find(lease.node);
    return held != nullptr && node ? held->find(*node, lease.generation) : nullptr;
  }
  bool has_stranger(const coordinator::RegionInfo& view) const {
    return std::ranges::any_of(view.leases, [this](const coordinator::Lease& lease) {
      return !lease.lost && !lease.stale && !lease.filling && find(lease) == nullptr;
    });
  }
  void lose(const coordinator::Lease& lease) {
    const pager::ReplicaLease* const replica = find(lease);
    if (replica != nullptr && (lease.lost || lease.stale))
      (void)replica->end(pager::ReplicaState::kLost);
  }

  const RepairOptions& options_;
  const RegionId region_;
  pager::LeaseMap& leases_;
  ImageLinks& links_;
  coordinator::Client& client_;
  const Doorbell bell_;
  pager::CopyGate gate_;  // nobody writes
  pager::Repairer repairer_;
  pager::RegionRepair repair_;
  coordinator::RegionInfo view_;  // its id is empty: none yet
  Instant view_due_{0};
  bool is_contested_ = false;
};

}  // namespace

Result<Repaired> repair(const RepairOptions& options, coordinator::ImageClient& images,
                        coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports,
                        const std::atomic<bool>& stopping) {
  // No reader: the image may be removed meanwhile.
  const coordinator::ImageReader reader{new_reader_name()};
  FARPAGE_TRY(opened, images.open(options.name, reader));
  (void)images.close(options.name, reader);
  FARPAGE_TRY(links,
              ImageLinks::create({{"image-map", kMapBytes, rdma::new_session(opened.session_group)},
                                  {"image-copy", pager::Repairer::kBufferBytes,
                                   rdma::new_session(opened.session_group)}},
                                 options.channel, client, transports));
  std::unique_ptr<pager::LeaseMap> leases;
  {
    ReadCounts counts;
    PageReads reads(
        *links, links->port(kMapPort),
        {.deadline = options.deadline, .operation_timeout = options.channel.operation_timeout},
        counts);
    FARPAGE_TRY(image, Image::load(opened, *links, reads, Image::private_memory,
                                   pager::DeadSlabs::kLeaveOut));
    FARPAGE_TRY(slots, slots_of(*image, opened.regions.front(), *links));
    leases = std::move(slots);
  }
  FARPAGE_TRY(bell, Doorbell::create());
  return Repair(options, opened.regions.front().id, *leases, *links, client, std::move(bell))
      .run(stopping);
}

}  // namespace farpage::image
