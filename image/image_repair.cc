#include "image/image_repair.h"

#include <algorithm>
#include <cstring>

#include "base/doorbell.h"
#include "image/image.h"
#include "image/image_links.h"
#include "image/page_reads.h"
#include "image/reader_name.h"
#include "pager/links/copy_gate.h"
#include "pager/links/region_repair.h"
#include "pager/links/repairer.h"
#include "pager/links/stored_pages.h"
#include "rdma/session.h"

namespace farpage::image {
namespace {

constexpr size_t kMapPort = 0;
constexpr size_t kCopyPort = 1;
constexpr size_t kMapBytes = size_t{16} * PageReads::kMaxRunPages << kPageShift;
constexpr Seconds kBetweenViews{1};
constexpr Milliseconds kLongestWait{200};  // until `stopping` is looked at

// The slots of an image's own region as they are in its map, where they are.
class Slots final : public pager::StoredPages {
 public:
  Slots(const Image& image, const pager::LeaseMap& leases)
      : image_(image), leases_(leases), checksums_(image.first_map_page()) {
    for (uint64_t page = 0; page < image.pages(); ++page) {
      const PageEntry& entry = image.map()[page];
      if (entry.is_stored() && entry.generation == 0) checksums_[entry.slot] = entry.checksum;
    }
  }

  uint64_t slabs() const override { return leases_.slabs(); }
  uint64_t slab_bytes() const override { return uint64_t{leases_.pages_per_slab()} << kPageShift; }
  const std::vector<coordinator::Lease>& leases() const override { return none_; }
  std::optional<PageIndex> place_of(PageIndex page) const override { return page; }
  // Behind the map is nothing.
  bool is_right(PageIndex page, std::span<const std::byte> bytes) const override {
    if (page.value < checksums_.size()) return checksum_of(bytes) == checksums_[page.value];
    const uint64_t of_map = page.value - checksums_.size();
    if (of_map >= image_.map_pages()) return true;
    const auto right = image_.map().encode().subspan(of_map << kPageShift, kPageBytes);
    return std::ranges::equal(bytes, right);
  }

 private:
  const Image& image_;
  const pager::LeaseMap& leases_;
  const std::vector<coordinator::Lease> none_;
  std::vector<uint64_t> checksums_;  // by slot
};

// Threads: one, and the repairer's.
class Repair {
 public:
  Repair(const RepairOptions& options, const Image& image, ImageLinks& links,
         coordinator::Client& client, Doorbell bell)
      : options_(options),
        region_(image.generations().front().region),
        leases_(*image.generations().front().leases),
        slots_(image, leases_),
        links_(links),
        client_(client),
        bell_(std::move(bell)),
        repairer_({.rate = options.rate}, gate_, links.nodes(), links.peers(),
                  links.port(kCopyPort)),
        repair_({leases_, links.nodes(), client,
                 [this](const NodeId& id) { return node_index(id); }, [this] { bell_.ring(); }}) {
    leases_.use(slots_);
  }

  Result<Repaired> run(const std::atomic<bool>& stopping) {
    Instant progress_at = SteadyClock::read();
    while (!stopping.load(std::memory_order_relaxed)) {
      FARPAGE_TRY_VOID(look());
      const Instant due = repair_.serve(view_, repairer_);
      if (repair_.is_done(view_.replicas, repairer_)) break;
      const Instant now = SteadyClock::read();
      if (repair_.is_filling()) progress_at = now;
      if (now - progress_at > options_.patience) break;
      const auto left = std::chrono::duration_cast<Milliseconds>(due - now);
      (void)bell_.wait(std::clamp(left, Milliseconds(1), kLongestWait));
    }
    repairer_.remove(leases_);
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
  // what the former one allows.
  Status look() {
    const Instant now = SteadyClock::read();
    if (!repair_.take_old_view() && now < view_due_) return {};
    FARPAGE_TRY(view, client_.region(region_));
    view_ = std::move(view);
    for (const NodeId& id : links_.nodes().ids()) {
      const Result<coordinator::NodeInfo> node = client_.node(id);
      if (node) FARPAGE_TRY_VOID(links_.nodes().put(*node));
      if (!node && node.error().code != ErrorCode::kNotFound) return tl::unexpected(node.error());
    }
    for (const coordinator::Lease& lease : view_.leases) lose(lease);
    repair_.compare(view_);
    view_due_ = now + kBetweenViews;
    return {};
  }

  void lose(const coordinator::Lease& lease) {
    const pager::SlabLease* const held =
        lease.lost && lease.slab.value < leases_.slabs() ? leases_.find(lease.slab) : nullptr;
    const auto node = links_.nodes().find(lease.node);
    const pager::ReplicaLease* const replica =
        held != nullptr && node ? held->find(*node, lease.generation) : nullptr;
    if (replica != nullptr) (void)replica->end(pager::ReplicaState::kLost);
  }

  const RepairOptions& options_;
  const RegionId region_;
  pager::LeaseMap& leases_;
  const Slots slots_;
  ImageLinks& links_;
  coordinator::Client& client_;
  const Doorbell bell_;
  pager::CopyGate gate_;  // nobody writes
  pager::Repairer repairer_;
  pager::RegionRepair repair_;
  coordinator::RegionInfo view_;
  Instant view_due_{0};
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
  ReadCounts counts;
  PageReads reads(
      *links, links->port(kMapPort),
      {.deadline = options.deadline, .operation_timeout = options.channel.operation_timeout},
      counts);
  FARPAGE_TRY(image, Image::load(opened, *links, reads));
  FARPAGE_TRY(bell, Doorbell::create());
  return Repair(options, *image, *links, client, std::move(bell)).run(stopping);
}

}  // namespace farpage::image
