#include "target_rig.h"

#include <cstring>

#include "base/check.h"
#include "rdma/session.h"

namespace farpage::pager {
namespace {

PagerOptions pager_options_of(const TargetRigOptions& options) {
  PagerOptions pager;
  pager.local_bytes = options.budget_pages << kPageShift;
  pager.replicas = options.nodes;
  pager.slab_bytes = TargetRig::kSlabBytes;
  pager.workers = options.workers;
  pager.prefetch_depth = options.prefetch_depth;
  pager.resolve_in_thread = options.resolve_in_thread;
  pager.fault_deadline = options.fault_deadline;
  pager.compressed.enabled = options.keeps_copies;
  pager.compressed.adaptive = options.adaptive_copies;
  pager.checksums = options.checksums;
  if (options.spares_flushes) spare_flushes(pager);
  return pager;
}

std::vector<std::string> names_of_nodes(uint32_t nodes) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < nodes; ++i) names.push_back("n" + std::to_string(i));
  return names;
}

std::unique_ptr<EngineCore> make_engine_core(const TargetRigOptions& options) {
  return std::unique_ptr<EngineCore>(
      new EngineCore{pager_options_of(options), std::move(*Succession::create(nullptr)),
                     std::make_shared<NodeDirectory>(no_succession()),
                     std::move(*NodeTable<PeerState>::create()), std::move(*TargetSet::create())});
}

}  // namespace

Result<coordinator::RegionInfo> FakeClient::create_region(const coordinator::RegionCreate&) {
  coordinator::RegionInfo region;
  region.id = RegionId{"r1"};
  region.replicas = static_cast<uint32_t>(nodes_.size());
  region.slab_bytes = slab_bytes_;
  region.heartbeat_interval = std::chrono::hours(1);
  return region;
}

Result<std::vector<coordinator::Lease>> FakeClient::lease_slabs(
    const RegionId&, const std::vector<SlabIndex>& slabs) {
  std::vector<coordinator::Lease> leases;
  for (const SlabIndex slab : slabs) {
    if (slab.value >= slab_limit_) return fail(ErrorCode::kExhausted, "no free slab");
    for (uint32_t replica = 0; replica < nodes_.size(); ++replica) {
      coordinator::Lease lease;
      lease.slab = slab;
      lease.replica = replica;
      lease.node = NodeId{nodes_[replica]};
      lease.address = RemoteAddress{slab.value * slab_bytes_};
      lease.bytes = slab_bytes_;
      lease.rkeys[rdma::TransportKind::kLoop] = RemoteKey{7};
      lease.generation = Generation{1};
      leases.push_back(lease);
    }
  }
  return leases;
}

Result<coordinator::NodeInfo> FakeClient::node(const NodeId& id) {
  coordinator::NodeInfo info;
  info.join.id = id;
  info.join.transports.push_back({.kind = rdma::TransportKind::kShm, .text = "somewhere"});
  return info;
}

TargetRig::TargetRig(const TargetRigOptions& options, TargetRig* engine_of)
    : client(names_of_nodes(options.nodes), kSlabBytes),
      engine_core(engine_of == nullptr ? make_engine_core(options) : nullptr),
      engine(engine_of == nullptr ? *engine_core : engine_of->engine),
      budget(engine.pressure, options.budget_pages,
             {engine.options.high_water_percent, engine.options.low_water_percent,
              pressing_percent(engine.options), options.adaptive_room,
              engine.options.most_room_pages}),
      space(options.pages, log),
      image(std::move(*ProcessImage::create(options.pages, engine.nodes, engine.succession))),
      owner(target.cold),
      backing_regions(*image, engine.options, client, *borrower_thread, owner, engine.succession,
                      keeper),
      pins(std::move(*PinMap::create(options.pages, options.pages))),
      access(std::move(*AccessMap::create(options.pages))),
      copies(std::move(*CompressedPages::create(options.keeps_copies ? options.pages : 0))),
      shares(std::move(*Mapping::anonymous(options.workers * sizeof(WorkerShare)))),
      times(std::move(*Mapping::anonymous(sizeof(TargetTimes)))),
      target{engine.options,
             engine,
             space,
             *image,
             table,
             budget,
             backing_regions,
             pins,
             access,
             copies,
             reinterpret_cast<WorkerShare*>(shares.data()),
             *reinterpret_cast<TargetTimes*>(times.data()),
             trends,
             clusters} {
  for (const std::string& name : names_of_nodes(options.nodes))
    nodes.push_back(std::make_unique<FakeNode>(name, options.pages, log));
  const Status opened = backing_regions.open(Seconds(0));
  FARPAGE_CHECK(opened.has_value(), "%s", opened.error().message().c_str());
  target.age_clock = uint64_t{kNow} << 32;
}

TargetRig::~TargetRig() {
  backing_regions.disown();
}

std::unique_ptr<LinkPort> TargetRig::make_port(size_t buffer_bytes) {
  buffers_.push_back(std::move(*Mapping::anonymous(buffer_bytes)));
  auto port = std::make_unique<LinkPort>("p" + std::to_string(ports_made_++),
                                         buffers_.back().bytes(), rdma::new_session(0),
                                         std::move(*LinkPort::Links::create()), connector_bell);
  for (size_t i = 0; i < nodes.size(); ++i) connect(*port, i);
  return port;
}

void TargetRig::connect(LinkPort& port, size_t node, rdma::ChannelLimits limits) {
  port.deliver(NodeIndex{static_cast<uint16_t>(node)}, nodes[node]->connect(limits));
}

bool TargetRig::lease_slab_of(uint64_t page) {
  backing_regions.want(PageIndex{page});
  const LeaseMap& leases = target.leases_of(PageWord());
  return becomes_true([&] { return leases.find(PageIndex{page}) != nullptr; });
}

const ReplicaLease& TargetRig::replica(uint64_t page, uint32_t index) const {
  return *target.leases_of(PageWord()).find(PageIndex{page})->replicas.at(index);
}

void TargetRig::move(uint64_t page, PageState to, uint32_t flags) {
  const PageWord word = table.load(PageIndex{page});
  table.transition_owned(PageIndex{page}, word, word.to(to, flags));
}

void TargetRig::make_remote(uffd::PageRun run, uint32_t flags) {
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    table.place(page, PageWord(PageState::kRemote, flags));
    for (const auto& each : nodes) each->set_word(page.value, word_of(page.value));
  }
}

std::vector<std::byte> TargetRig::page_of(uint64_t word) {
  std::vector<std::byte> page(kPageBytes);
  std::memcpy(page.data(), &word, sizeof word);
  return page;
}

void TargetRig::keep_checksums(uffd::PageRun run) {
  SlotChecksums& checksums = target.checksums_of(PageWord());
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    checksums.set(page, checksums.of(page_of(node().word(page.value))));
  }
}

void TargetRig::make_present(uffd::PageRun run, PageState state, uffd::Protection protection,
                             bool zero) {
  budget.take_anyway(run.pages);
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    table.place(page, PageWord(state));
    space.put(page.value, zero ? 0 : word_of(page.value), protection);
  }
}

void TargetRig::make_clean(uffd::PageRun run) {
  make_present(run, PageState::kClean, uffd::Protection::kWriteProtected, /*zero=*/false);
  for (uint32_t i = 0; i < run.pages; ++i)
    for (const auto& each : nodes)
      each->set_word(run.first.value + i, word_of(run.first.value + i));
}

void TargetRig::make_dirty(uffd::PageRun run) {
  make_present(run, PageState::kDirty, uffd::Protection::kWritable, /*zero=*/false);
}

void TargetRig::make_zero(uffd::PageRun run) {
  make_present(run, PageState::kDirty, uffd::Protection::kWritable, /*zero=*/true);
}

PageWord TargetRig::make_fetching(uint64_t page) {
  make_remote({PageIndex{page}, 1});
  budget.take_anyway();
  move(page, PageState::kFetching, PageWord::kFromRemote);
  return table.load(PageIndex{page});
}

}  // namespace farpage::pager
