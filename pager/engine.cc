#include "pager/engine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/cpus.h"
#include "pager/engine_threads.h"
#include "pager/target_pager.h"
#include "rdma/session.h"

namespace farpage::pager {
namespace {

// The thread's id, queried once. Initial-exec: a signal handler reads it, and must not allocate.
uint32_t calling_thread() {
  [[gnu::tls_model("initial-exec")]] static thread_local uint32_t id = 0;
  if (id == 0) id = static_cast<uint32_t>(::gettid());
  return id;
}

}  // namespace

EngineThreads::EngineThreads(Parts parts, coordinator::Client& client,
                             std::vector<std::unique_ptr<rdma::Transport>>& transports)
    : client_(client),
      buffers_(std::move(parts.buffers)),
      wake_policy_(std::move(parts.wake_policy)),
      connector_bell_(std::move(parts.connector_bell)),
      borrower_thread_(std::move(parts.borrower_thread)),
      core_{std::move(parts.options), std::move(parts.succession),
            std::make_shared<NodeDirectory>(core_.succession, parts.file), std::move(parts.peers),
            std::move(parts.targets)} {
  core_.pressure.on_room = [this](uint64_t workers) { wake_policy_->wake(workers); };
  make_ports(std::move(parts.links), parts.sessions);
  connector_ = std::make_unique<Connector>(core_.connector_parts(), client, transports, port_list(),
                                           connector_bell_);
  const size_t evictor_port = size_t{2} * core_.options.workers;
  evictor_ = std::make_unique<Evictor>(core_, *ports_[evictor_port]);
  repairer_ = std::make_unique<Repairer>(
      Repairer::Options{core_.options.repair_rate, core_.options.checksums,
                        core_.options.scrub_bytes_per_second},
      core_.copy_gate, *core_.nodes, core_.peers, *ports_[evictor_port + 1]);
  core_.on_wrong_page = [this](const WrongPage& wrong) { repairer_->report(wrong); };
  borrower_thread_->use(repairer_.get());
  make_workers();
  if (!core_.options.resolve_in_thread) readahead_ = std::make_unique<Readahead>();
}

EngineThreads::~EngineThreads() {
  core_.stopping.store(true, std::memory_order_release);
  repairer_->stop();
  readahead_.reset();
  connector_bell_.ring();
  evictor_.reset();
  core_.workers_stopping.store(true, std::memory_order_release);
  wake_policy_->stop();
  workers_.clear();
}

std::string EngineThreads::port_name(size_t port, uint32_t workers) {
  if (port == size_t{2} * workers) return "evict";
  if (port == size_t{2} * workers + 1) return "repair";
  return (port % 2 == 0 ? "demand-" : "prefetch-") + std::to_string(port / 2);
}

void EngineThreads::make_ports(std::vector<LinkPort::Links> links,
                               const std::vector<uint64_t>& sessions) {
  std::span<std::byte> rest = buffers_.bytes();
  const auto take = [&](size_t bytes, rdma::PackWrites pack_writes = rdma::PackWrites::kNever) {
    const size_t port = ports_.size();
    ports_.push_back(std::make_unique<LinkPort>(
        port_name(port, core_.options.workers), rest.first(bytes), sessions.at(port),
        std::move(links.at(port)), connector_bell_, pack_writes));
    rest = rest.subspan(bytes);
  };
  for (uint32_t i = 0; i < core_.options.workers; ++i) {
    take(Fetcher::kBufferBytes);
    take(Prefetcher::kBufferBytes);
  }
  const rdma::PackWrites pack_writes =
      core_.options.compressed.enabled ? rdma::PackWrites::kOnSlowWire : rdma::PackWrites::kNever;
  take(EvictionBatch::kBufferBytes, pack_writes);
  take(Repairer::kBufferBytes, pack_writes);
}

Status EngineThreads::take_over() {
  const Succession& succession = core_.succession;
  FARPAGE_TRY_VOID(core_.nodes->take_over());
  FARPAGE_TRY(records, succession.regions());
  FARPAGE_TRY(targets, succession.targets());
  std::map<uint64_t, std::shared_ptr<ForkGroup>> groups;
  const auto group_of = [&](uint64_t number) -> Result<std::shared_ptr<ForkGroup>> {
    std::shared_ptr<ForkGroup>& group = groups[number];
    if (!group) {
      FARPAGE_TRY(made, ForkGroup::create(core_.nodes, number));
      group = std::move(made);
    }
    return group;
  };
  std::map<uint64_t, std::shared_ptr<BackingRegion>> regions;
  for (const auto& [number, record] : records) {
    FARPAGE_TRY(group, group_of(record.group));
    FARPAGE_TRY(region, BackingRegion::restore(std::move(group), core_.options, number, record,
                                               client_, succession));
    regions.emplace(number, std::move(region));
  }
  // Each has said by now which places of the file are in use.
  for (const auto& [number, region] : regions) region->borrower().start(*borrower_thread_);
  for (const auto& [number, record] : targets) {
    const auto found = [&](const std::vector<uint64_t>& numbers) {
      BackingRegionList list;
      for (const uint64_t region : numbers)
        if (const auto at = regions.find(region); at != regions.end()) list.push_back(at->second);
      return list;
    };
    FARPAGE_TRY(group, group_of(record.group));
    std::unique_ptr<ProcessImage> snapshot;
    if (record.snapshot != 0) {
      TargetRecord of_snapshot = record;
      of_snapshot.table = record.snapshot;
      FARPAGE_TRY(restored,
                  ProcessImage::restore(of_snapshot, group, found(record.regions), succession));
      snapshot = std::move(restored);
    }
    FARPAGE_TRY(image,
                ProcessImage::restore(record, std::move(group), found(record.regions), succession));
    const MutexLock lock(heirs_mutex_);
    heirs_.emplace(number, Heir{record, std::move(snapshot), std::move(image), found(record.own)});
  }
  for (auto& [number, region] : regions)
    if (region.use_count() == 1) leftovers_.push_back(Heir{{}, {}, {}, {std::move(region)}});
  for (uint16_t i = 0; !regions.empty() && i < core_.nodes->size(); ++i) node_wanted(NodeIndex{i});
  if (!regions.empty() && core_.nodes->file() != nullptr) node_wanted(kFileNode);
  return {};
}

Result<std::unique_ptr<Pager>> EngineThreads::resume(const ResumeOptions& options,
                                                     std::unique_ptr<uffd::AddressSpace>& space,
                                                     OnChild on_child) {
  Heir heir;
  {
    const MutexLock lock(heirs_mutex_);
    const auto at = heirs_.find(options.number);
    if (at == heirs_.end())
      return fail(ErrorCode::kNotFound, "no target " + std::to_string(options.number));
    heir = std::move(at->second);
    heirs_.erase(at);
  }
  if (options.stored) FARPAGE_TRY_VOID(add_stored(*heir.image, options.stored));
  FARPAGE_TRY(pager, TargetPager::create(*this, options, space, heir.image, std::move(on_child),
                                         heir.record));
  if (heir.record.forking) pager->go_on_forking(std::move(heir.snapshot), options.fork_children);
  Status resumed = pager->resume(std::move(heir.own), options.agent_ready);
  if (resumed) resumed = pager->start();
  if (resumed) return std::unique_ptr<Pager>(std::move(pager));
  Inheritance back;
  pager->give_back(back);
  space = std::move(back.space);
  return tl::unexpected(resumed.error());
}

bool EngineThreads::can_resume(uint64_t number) {
  const MutexLock lock(heirs_mutex_);
  return heirs_.contains(number);
}

void EngineThreads::end_succession(const std::set<uint64_t>& resumed) {
  const MutexLock lock(heirs_mutex_);
  for (auto heir = heirs_.begin(); heir != heirs_.end();) {
    if (resumed.contains(heir->first)) {
      ++heir;
    } else {
      core_.succession.erase_target(heir->first);
      core_.succession.drop_memory(Succession::pins_name(heir->first));
      leftovers_.push_back(std::move(heir->second));
      heir = heirs_.erase(heir);
    }
  }
  // The coordinator may be slow, and programs wait.
  cleaner_ = std::jthread([this] { leftovers_.clear(); });
}

void EngineThreads::make_workers() {
  const std::vector<int> cpus = allowed_cpus();
  for (uint32_t i = 0; i < core_.options.workers; ++i) {
    const FaultWorker::Ports ports{*ports_[size_t{2} * i], *ports_[size_t{2} * i + 1]};
    if (core_.options.resolve_in_thread) {
      workers_.push_back(std::make_unique<FaultWorker>(core_, ports, *evictor_, i));
      continue;
    }
    const bool pin = core_.options.pin_workers && !cpus.empty();
    workers_.push_back(std::make_unique<FaultWorker>(core_, ports, *wake_policy_, i,
                                                     pin ? cpus[i % cpus.size()] : -1));
  }
}

std::vector<LinkPort*> EngineThreads::port_list() const {
  std::vector<LinkPort*> list;
  for (const auto& port : ports_) list.push_back(port.get());
  return list;
}

void EngineThreads::node_wanted(NodeIndex node) {
  // Each backing region asks; an existing channel must not be replaced.
  if (core_.peers[node].requested.exchange(true, std::memory_order_relaxed)) return;
  // The repairer asks for its own when it has something to copy.
  for (size_t port = 0; port + 1 < ports_.size(); ++port) ports_[port]->request(node);
  connector_bell_.ring();
}

Status EngineThreads::start(Target& target) {
  if (!core_.options.resolve_in_thread) {
    FARPAGE_TRY(changed, core_.targets.add(target, target.space.event_descriptor()));
    if (changed) wake_policy_->look_again();
  }
  const Target* none = nullptr;
  oldest_.compare_exchange_strong(none, &target, std::memory_order_relaxed);
  evictor_->add(target);
  return {};
}

void EngineThreads::remove(Target& target) {
  const Target* oldest = &target;
  oldest_.compare_exchange_strong(oldest, nullptr, std::memory_order_relaxed);
  // Both may wait for a fault worker.
  if (readahead_) readahead_->remove(target);
  evictor_->remove(target);
  const bool changed = core_.targets.remove(target);
  core_.removals.fetch_add(1, std::memory_order_release);
  if (changed) wake_policy_->look_again();
  target.budget.interrupt();
  core_.event_readers.wait_until_handled();
  while (target.is_held()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void EngineThreads::resolve(Target& target, PageIndex page, uffd::FaultKind kind) {
  const uffd::Fault fault{page, kind, calling_thread()};
  const size_t index = take_worker(fault.thread);
  workers_[index]->resolve_here(target, fault);
  taken_[index].clear(std::memory_order_release);
}

// A thread that faults again and again is back before a waiting one looks, and keeps its worker:
// best while faults are short. A thread that has waited for long gets a turn, and from then on all
// that come wait behind it.
size_t EngineThreads::take_worker(uint32_t thread) {
  constexpr Nanoseconds kPatience = Milliseconds(100);
  std::optional<size_t> index;
  const auto somebody_has_turn = [&] {
    return next_turn_.load(std::memory_order_relaxed) != turn_.load(std::memory_order_relaxed);
  };
  Instant since{0};
  while (!somebody_has_turn()) {
    if ((index = try_take_worker(thread))) return *index;
    const Instant now = SteadyClock::read();
    if (since.count() == 0) since = now;
    if (now - since > kPatience) break;
    ::sched_yield();
  }
  const uint64_t turn = next_turn_.fetch_add(1, std::memory_order_relaxed);
  while (turn_.load(std::memory_order_relaxed) != turn) ::sched_yield();
  while (!(index = try_take_worker(thread))) ::sched_yield();
  turn_.store(turn + 1, std::memory_order_relaxed);
  return *index;
}

// A thread returns to its own worker and so to its own channels; if another thread is using that
// worker, it takes the next one.
std::optional<size_t> EngineThreads::try_take_worker(uint32_t thread) {
  for (size_t tries = 0; tries < workers_.size(); ++tries) {
    const size_t index = (thread + tries) % workers_.size();
    // Acquire: pairs with the release in resolve(), so that only one thread at a time uses a
    // worker.
    if (!taken_[index].test_and_set(std::memory_order_acquire)) return index;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Pager>> EngineThreads::add(const TargetOptions& options,
                                                  std::unique_ptr<uffd::AddressSpace> space,
                                                  Milliseconds patience, OnChild on_child) {
  FARPAGE_TRY(image, ProcessImage::create(space->pages(), core_.nodes, core_.succession));
  FARPAGE_TRY(pager, TargetPager::create(*this, options, space, image, std::move(on_child),
                                         image->record()));
  FARPAGE_TRY_VOID(pager->open(patience));
  FARPAGE_TRY_VOID(pager->start());
  return std::unique_ptr<Pager>(std::move(pager));
}

Result<std::unique_ptr<Pager>> EngineThreads::adopt(const TargetOptions& options,
                                                    Inheritance& inheritance, OnChild on_child) {
  FARPAGE_TRY(pager, TargetPager::create(*this, options, inheritance.space, inheritance.image,
                                         std::move(on_child), inheritance.image->record()));
  pager->take_over(inheritance.age_clock);
  if (const Status started = pager->start(); !started) {
    pager->give_back(inheritance);
    return tl::unexpected(started.error());
  }
  return std::unique_ptr<Pager>(std::move(pager));
}

Result<std::optional<NodeIndex>> EngineThreads::index_of(const NodeId& id) {
  std::optional<NodeIndex> index = core_.nodes->find(id);
  if (!index) {
    const Result<coordinator::NodeInfo> node = client_.node(id);
    if (!node && node.error().code == ErrorCode::kNotFound) return index;
    if (!node) return tl::unexpected(node.error());
    FARPAGE_TRY(added, core_.nodes->put(*node));
    index = added;
  }
  node_wanted(*index);
  return index;
}

Status EngineThreads::add_stored(ProcessImage& image, std::shared_ptr<const StoredPages> stored) {
  const uint64_t pages_of_slab = stored->slab_bytes() >> kPageShift;
  FARPAGE_TRY(leases, LeaseMap::create(stored->slabs() * pages_of_slab, stored->slab_bytes()));
  FARPAGE_TRY_VOID(
      publish_leases(stored->leases(), *leases, [this](const NodeId& id) { return index_of(id); }));
  if (leases->leased_slabs() != stored->slabs())
    return fail(ErrorCode::kUnavailable, "a slab of the stored pages is missing");
  leases->use(*stored);
  FARPAGE_TRY(region, BackingRegion::of_stored(image.fork_group(), std::move(stored),
                                               std::move(leases), core_.succession));
  image.backing_regions().push_back(std::move(region));
  return {};
}

Result<std::unique_ptr<Pager>> EngineThreads::restore(const TargetOptions& options,
                                                      std::unique_ptr<uffd::AddressSpace>& space,
                                                      std::shared_ptr<const StoredPages> stored) {
  FARPAGE_TRY(image, ProcessImage::create(space->pages(), core_.nodes, core_.succession));
  FARPAGE_TRY_VOID(add_stored(*image, stored));
  const PageWord word = PageWord(PageState::kRemote).with_backing(BackingRegion::kOfStored);
  for (uint64_t i = 0; i < space->pages(); ++i)
    if (stored->place_of(PageIndex{i})) image->table().place(PageIndex{i}, word);
  Inheritance child;
  child.space = std::move(space);
  child.image = std::move(image);
  auto pager = adopt(options, child, {});
  if (!pager) space = std::move(child.space);
  return pager;
}

Result<std::unique_ptr<Engine>> Engine::create(
    const PagerOptions& options, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore* state,
    rdma::SlabFile* file) {
  FARPAGE_TRY_VOID(validate(options));
  FARPAGE_CHECK(file == nullptr || file->slab_bytes() == options.slab_bytes,
                "places of %llu bytes for slabs of %llu",
                static_cast<unsigned long long>(file->slab_bytes()),
                static_cast<unsigned long long>(options.slab_bytes));
  PagerOptions complete = options;
  if (complete.workers == 0) {
    complete.workers = static_cast<uint32_t>(std::max<size_t>(1, allowed_cpus().size()));
    complete.workers = std::min(complete.workers, kMaxWorkers);
  }
  complete.transports.clear();
  for (const auto& transport : transports)  // those of nodes
    if (transport->kind() != rdma::TransportKind::kFile)
      complete.transports.push_back(transport->kind());
  if (complete.session_group == 0) complete.session_group = rdma::new_session_group();
  FARPAGE_TRY(succession, Succession::create(state));
  FARPAGE_TRY(session_group, succession.session_group(complete.session_group));
  complete.session_group = session_group;
  std::vector<uint64_t> sessions;
  for (size_t port = 0; port < EngineThreads::port_count(complete.workers); ++port) {
    FARPAGE_TRY(session, succession.session(EngineThreads::port_name(port, complete.workers),
                                            session_group));
    sessions.push_back(session);
  }
  FARPAGE_TRY(peers, NodeTable<PeerState>::create());
  FARPAGE_TRY(targets, TargetSet::create());
  FARPAGE_TRY(buffers, Mapping::anonymous(EngineThreads::buffer_bytes(complete.workers), true));
  std::vector<LinkPort::Links> links;
  while (links.size() < EngineThreads::port_count(complete.workers)) {
    FARPAGE_TRY(of_port, LinkPort::Links::create());
    links.push_back(std::move(of_port));
  }
  FARPAGE_TRY(wake_policy, WakePolicy::create(complete.workers));
  FARPAGE_TRY(connector_bell, Doorbell::create());
  FARPAGE_TRY(borrower_thread, BorrowerThread::create());
  auto engine = std::make_unique<EngineThreads>(
      EngineThreads::Parts{std::move(complete), std::move(succession), std::move(peers),
                           std::move(targets), std::move(buffers), std::move(links),
                           std::move(sessions), std::move(wake_policy), std::move(connector_bell),
                           std::move(borrower_thread), file},
      client, transports);
  FARPAGE_TRY_VOID(engine->take_over());
  return engine;
}

}  // namespace farpage::pager
