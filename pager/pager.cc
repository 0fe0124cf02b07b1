#include "pager/pager.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/doorbell.h"
#include "base/size.h"
#include "pager/core.h"
#include "pager/evict/evictor.h"
#include "pager/fault/discard.h"
#include "pager/fault/fault_worker.h"
#include "pager/fault/pull_in.h"
#include "pager/fault/readahead.h"
#include "pager/fork/fork_window.h"
#include "pager/links/connector.h"
#include "rdma/session.h"

namespace farpage::pager {
namespace {

// The CPUs this process may run on.
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

// The thread's id, queried once. Initial-exec: a signal handler reads it, and must not allocate.
uint32_t calling_thread() {
  [[gnu::tls_model("initial-exec")]] static thread_local uint32_t id = 0;
  if (id == 0) id = static_cast<uint32_t>(::gettid());
  return id;
}

// With more pinned than the low-water mark the evictor would never stop.
uint64_t pin_percent(const PagerOptions& options) {
  return std::min(kPinPercent, options.low_water_percent);
}
// A thread that waits for the READ of its own fault evicts meanwhile. The evictor's thread runs
// when that is not enough, or when no thread waits.
uint32_t pressing_percent(const PagerOptions& options) {
  const uint32_t high = options.high_water_percent;
  return options.resolve_in_thread ? (high + 100) / 2 : high;
}
constexpr uint64_t kMiBShift = 20 - kPageShift;  // of pages
uint64_t pin_limit_pages(const PagerOptions& options, uint64_t budget_pages) {
  return budget_pages * pin_percent(options) / 100;
}

class PagerThreads final : public Pager, private RegionOwner {
 public:
  // Created before the threads, by create().
  struct Parts {
    PagerOptions options;
    std::unique_ptr<uffd::AddressSpace> space;
    std::unique_ptr<ProcessImage> image;
    PinMap pins;
    AccessMap access;
    Mapping buffers;
    std::unique_ptr<WakePolicy> wake_policy;
    std::vector<LinkPort::Links> links;  // of each port
    NodeTable<PeerState> peers;
    Doorbell connector_bell;
    Doorbell children_bell;
  };

  PagerThreads(Parts parts, coordinator::Client& client, OnChild on_child)
      : parts_(std::move(parts)),
        budget_(parts_.options.local_bytes >> kPageShift, parts_.options.high_water_percent,
                parts_.options.low_water_percent, pressing_percent(parts_.options)),
        backing_regions_(*parts_.image, parts_.options, client, *this),
        core_{parts_.options,
              *parts_.space,
              *parts_.image,
              parts_.image->table(),
              budget_,
              backing_regions_,
              parts_.image->fork_group()->nodes(),
              shared_stats_,
              parts_.pins,
              parts_.access,
              parts_.peers},
        fork_window_(core_, parts_.children_bell, std::move(on_child)) {
    core_.on_forked = [this](std::unique_ptr<uffd::AddressSpace> child) {
      fork_window_.arrived(std::move(child));
    };
    make_ports();
  }

  ~PagerThreads() override {
    readahead_.reset();         // it may wait for a fault worker
    backing_regions_.disown();  // their heartbeats read the workers' counters
    core_.stopping.store(true, std::memory_order_release);
    parts_.connector_bell.ring();
    evictor_.reset();  // it may wait for a fault worker, too
    core_.workers_stopping.store(true, std::memory_order_release);
    parts_.wake_policy->stop();
    budget_.interrupt();
    workers_.clear();
    fork_window_.adopt();  // those that the workers have read at the last moment
  }

  Status open(Milliseconds patience) { return backing_regions_.open(patience); }

  void take_over(uint64_t age_clock) {
    core_.age_clock.store(age_clock, std::memory_order_relaxed);
    budget_.inherit(resident_pages());
    for (size_t i = 0; i < core_.nodes.size(); ++i)
      node_wanted(NodeIndex{static_cast<uint16_t>(i)});
  }

  void start(coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
             bool agent) {
    if (!agent) budget_.lift_limit();
    connector_ =
        std::make_unique<Connector>(core_, client, transports, port_list(), parts_.connector_bell);
    evictor_ = std::make_unique<Evictor>(core_, *ports_.back(), !agent);
    const std::vector<int> cpus = allowed_cpus();
    for (uint32_t i = 0; i < parts_.options.workers; ++i) {
      const size_t first = size_t{2} * i;
      const FaultWorker::Ports ports{*ports_[first], *ports_[first + 1]};
      if (parts_.options.resolve_in_thread) {
        workers_.push_back(std::make_unique<FaultWorker>(core_, ports, trends_, *evictor_));
        continue;
      }
      const bool pin = parts_.options.pin_workers && !cpus.empty();
      workers_.push_back(std::make_unique<FaultWorker>(core_, ports, trends_, *parts_.wake_policy,
                                                       i, pin ? cpus[i % cpus.size()] : -1));
    }
    // Where threads resolve their own faults, a read of the window by the pager fetches nothing.
    if (!parts_.options.resolve_in_thread) readahead_ = std::make_unique<Readahead>(core_);
    started_.store(true, std::memory_order_release);
  }

  void discard(uffd::PageRun run) override {
    core_.cold.forget(run);
    fork_window_.discard(run);
  }

  bool pin(uffd::PageRun run) override {
    if (!parts_.pins.pin(run)) return false;
    // After this, the evictor has finished all earlier picks; it picks none of these pages again.
    evictor_->pause();
    evictor_->resume();
    return true;
  }
  void unpin(uffd::PageRun run) override { parts_.pins.unpin(run); }

  void hint_cold(uffd::PageRun run) override {
    if (readahead_) readahead_->forget(run);
    core_.cold.push(run);
    budget_.interrupt();
  }
  void hint_willneed(uffd::PageRun run) override {
    core_.cold.forget(run);
    if (readahead_) readahead_->request(run);
  }
  void advise(uffd::PageRun run, AccessPattern pattern) override {
    parts_.access.set(run, pattern);
  }

  Status set_local(uint64_t local_bytes) override {
    FARPAGE_TRY_VOID(validate_local(local_bytes));
    return set_limit(local_bytes >> kPageShift);
  }
  Status set_limit(uint64_t pages) override {
    const std::lock_guard lock(resize_mutex_);
    if (!parts_.pins.set_limit(pin_limit_pages(parts_.options, pages)))
      return fail(ErrorCode::kConflict, too_much_is_pinned());
    budget_.resize(pages);
    return {};
  }
  uint64_t limit_to_pin(uffd::PageRun run) const override {
    return limit_for(parts_.pins.pinned_pages() + run.pages);
  }

  bool begin_fork() override {
    budget_.lift_limit();
    evictor_->pause();
    if (may_fork()) return true;
    end_fork(false);
    return false;
  }
  void end_fork(bool forked) override {
    fork_window_.close(forked);
    budget_.restore_limit();
    evictor_->resume();
  }
  int children_descriptor() const override { return parts_.children_bell.fd(); }
  void adopt_children() override {
    (void)parts_.children_bell.wait(Milliseconds(0));
    fork_window_.adopt();
  }
  void agent_ready() override {
    budget_.restore_limit();
    evictor_->resume();
  }

  void resolve(PageIndex page, uffd::FaultKind kind) override {
    const uffd::Fault fault{page, kind, calling_thread()};
    // A thread returns to its own worker and so to its own channels; if another thread is using
    // that worker, it takes the next one.
    for (size_t tries = 0;; ++tries) {
      const size_t index = (fault.thread + tries) % workers_.size();
      // Acquire: pairs with the release below, so that only one thread at a time uses a worker.
      if (!taken_[index].test_and_set(std::memory_order_acquire)) {
        workers_[index]->resolve_here(fault);
        taken_[index].clear(std::memory_order_release);
        return;
      }
      if (tries % workers_.size() == workers_.size() - 1) ::sched_yield();
    }
  }
  std::optional<uffd::FaultKind> next_fault(PageIndex page, bool write) const override {
    switch (parts_.image->table().load(page).state()) {
      case PageState::kDirty:
        return std::nullopt;
      case PageState::kClean:
      case PageState::kUnprotecting:
      case PageState::kEvicting:
        if (!write) return std::nullopt;
        return uffd::FaultKind::kWriteProtected;
      case PageState::kEmpty:
      case PageState::kFetching:
      case PageState::kDropping:
      case PageState::kRemote:
      case PageState::kLost:
        break;
    }
    return write ? uffd::FaultKind::kMissingWrite : uffd::FaultKind::kMissingRead;
  }
  bool is_away(PageIndex page) const override {
    const PageWord word = parts_.image->table().load(page);
    return word.state() == PageState::kRemote ||
           (word.state() == PageState::kFetching && word.has(PageWord::kFromRemote));
  }
  bool has_spare_room() const override { return !budget_.is_pressing(); }
  bool is_lost(PageIndex page) const override {
    return parts_.image->table().load(page).state() == PageState::kLost;
  }

  uffd::AddressSpace& space() override { return *parts_.space; }
  bool target_gone() const override { return core_.target_gone.load(std::memory_order_acquire); }

  BudgetUse budget_use() const override {
    BudgetUse use{.limit_pages = budget_.limit(),
                  .used_pages = budget_.used(),
                  .least_pages = limit_for(parts_.pins.pinned_pages())};
    for (const auto& worker : workers_)
      use.faults += worker->stats().faults_remote.get() + worker->stats().faults_zero.get();
    return use;
  }
  PagerStats stats() const override {
    PagerStats sum;
    for (const auto& worker : workers_) sum.add(worker->stats());
    if (evictor_) sum.add(evictor_->stats());
    sum.add(shared_stats_);
    sum.resident_pages = budget_.used();
    sum.budget_pages = budget_.limit();
    sum.away_pages = core_.table.away_pages();
    sum.leased_slabs = backing_regions_.leased_slabs();
    return sum;
  }

  Status check_invariants() const override {
    FARPAGE_TRY_VOID(pager::check_invariants(core_.table));
    const uint64_t resident = resident_pages();
    if (resident != budget_.used())
      return fail(ErrorCode::kConflict, "the budget counts " + std::to_string(budget_.used()) +
                                            " pages, the table " + std::to_string(resident));
    return {};
  }

  static size_t port_count(uint32_t workers) { return size_t{2} * workers + 1; }
  static size_t buffer_bytes(uint32_t workers) {
    return workers * FaultWorker::kBufferBytes + EvictionBatch::kBufferBytes;
  }

 private:
  // -- LayerOwner --
  void node_wanted(NodeIndex node) override {
    // Each backing region asks; an existing channel must not be replaced.
    if (core_.peers[node].requested.exchange(true, std::memory_order_relaxed)) return;
    for (const auto& port : ports_) port->request(node);
    parts_.connector_bell.ring();
  }
  coordinator::Counters counters_of(const LeaseMap& backing_region) override {
    // One region of a process reports for all of them.
    const bool tells =
        backing_regions_.is_first(backing_region) && started_.load(std::memory_order_acquire);
    return tells ? stats().counters() : coordinator::Counters();
  }
  void leased() override {
    core_.cold.leased();
    if (!core_.cold.empty()) budget_.interrupt();
  }
  void replica_lost() override {
    shared_stats_.replicas_lost.fetch_add(1, std::memory_order_relaxed);
  }

  // The smallest limit with which so many pages may be pinned.
  uint64_t limit_for(uint64_t pinned_pages) const {
    const uint64_t percent = pin_percent(parts_.options);
    return (pinned_pages * 100 + percent - 1) / percent;
  }

  std::string too_much_is_pinned() const {
    const uint64_t pinned = parts_.pins.pinned_pages();
    return "local: " + format_size(pinned << kPageShift) + " are pinned (mlock), and at most " +
           std::to_string(pin_percent(parts_.options)) + " % may be: at least " +
           std::to_string((limit_for(pinned) >> kMiBShift) + 1) + "M, or unlock some";
  }

  bool may_fork() {
    switch (parts_.options.fork) {
      case ForkMode::kRefuse:
        return core_.table.away_pages() == 0;
      case ForkMode::kPullIn:
        return core_.table.away_pages() == 0 || pull_in(core_);
      case ForkMode::kShare:
        return static_cast<bool>(fork_window_.open());
    }
    return false;
  }

  uint64_t resident_pages() const {
    uint64_t resident = 0;
    for (uint64_t b = 0; b < core_.table.blocks(); ++b)
      resident += core_.table.resident_in_block(b);
    return resident;
  }

  void make_ports() {
    std::span<std::byte> rest = parts_.buffers.bytes();
    const auto take = [&](const std::string& name, size_t bytes) {
      ports_.push_back(std::make_unique<LinkPort>(
          name, rest.first(bytes), parts_.options.session_group,
          std::move(parts_.links.at(ports_.size())), parts_.connector_bell));
      rest = rest.subspan(bytes);
    };
    for (uint32_t i = 0; i < parts_.options.workers; ++i) {
      take("demand-" + std::to_string(i), Fetcher::kBufferBytes);
      take("prefetch-" + std::to_string(i), Prefetcher::kBufferBytes);
    }
    take("evict", EvictionBatch::kBufferBytes);
  }

  std::vector<LinkPort*> port_list() const {
    std::vector<LinkPort*> list;
    for (const auto& port : ports_) list.push_back(port.get());
    return list;
  }

  // Order matters: a process image uses earlier ones and is destroyed before them.
  Parts parts_;
  std::mutex resize_mutex_;  // budget and pin limit change together
  Budget budget_;
  SharedStats shared_stats_;
  BackingRegions backing_regions_;
  Core core_;
  ForkWindow fork_window_;
  TrendDetector trends_;
  std::vector<std::unique_ptr<LinkPort>> ports_;
  std::atomic<bool> started_{false};
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<FaultWorker>> workers_;
  std::array<std::atomic_flag, kMaxWorkers> taken_{};  // by a thread in resolve()
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Readahead> readahead_;  // none with resolve_in_thread
};

}  // namespace

Status validate_local(uint64_t local_bytes) {
  if (local_bytes >= kMinLocalBytes) return {};
  return fail(ErrorCode::kInvalid,
              "local: at least " + format_size(kMinLocalBytes) + " of memory must stay local");
}

Status validate(const PagerOptions& options) {
  const auto invalid = [](const std::string& text) { return fail(ErrorCode::kInvalid, text); };
  FARPAGE_TRY_VOID(validate_local(options.local_bytes));
  if (options.replicas < 1 || options.replicas > coordinator::kMaxReplicas)
    return invalid("replicas: 1 to " + std::to_string(coordinator::kMaxReplicas));
  const uint64_t slab = options.slab_bytes;
  if (slab < coordinator::kMinSlabBytes || slab > coordinator::kMaxSlabBytes ||
      (slab & (slab - 1)) != 0)
    return invalid("slab: a power of two from 2M to 1G");
  if (options.workers > kMaxWorkers)
    return invalid("workers: at most " + std::to_string(kMaxWorkers));
  if (options.prefetch_depth > kMaxPrefetchDepth)
    return invalid("prefetch-depth: at most " + std::to_string(kMaxPrefetchDepth));
  if (options.low_water_percent < 1 || options.low_water_percent > options.high_water_percent ||
      options.high_water_percent > 100)
    return invalid("water marks: 1 <= low-water <= high-water <= 100 percent");
  if (options.fault_deadline < Milliseconds(10)) return invalid("fault-deadline: at least 10 ms");
  if (options.transports.empty()) return invalid("transport: name at least one");
  return {};
}

namespace {

// Makes all but the threads. Takes space and process image only on success.
Result<std::unique_ptr<PagerThreads>> make_pager(const PagerOptions& options,
                                                 std::unique_ptr<uffd::AddressSpace>& space,
                                                 std::unique_ptr<ProcessImage>& image,
                                                 coordinator::Client& client, OnChild on_child) {
  FARPAGE_TRY_VOID(validate(options));
  PagerOptions complete = options;
  if (complete.workers == 0) {
    complete.workers = static_cast<uint32_t>(std::max<size_t>(1, allowed_cpus().size()));
    complete.workers = std::min(complete.workers, kMaxWorkers);
  }
  if (complete.session_group == 0) complete.session_group = rdma::new_session_group();
  const uint64_t pin_limit = pin_limit_pages(complete, complete.local_bytes >> kPageShift);
  FARPAGE_TRY(pins, PinMap::create(space->pages(), pin_limit));
  FARPAGE_TRY(access, AccessMap::create(space->pages()));
  FARPAGE_TRY(buffers, Mapping::anonymous(PagerThreads::buffer_bytes(complete.workers), true));
  std::vector<LinkPort::Links> links;
  while (links.size() < PagerThreads::port_count(complete.workers)) {
    FARPAGE_TRY(of_port, LinkPort::Links::create());
    links.push_back(std::move(of_port));
  }
  FARPAGE_TRY(peers, NodeTable<PeerState>::create());
  FARPAGE_TRY(wake_policy, WakePolicy::create(complete.workers));
  FARPAGE_TRY(connector_bell, Doorbell::create());
  FARPAGE_TRY(children_bell, Doorbell::create());
  return std::make_unique<PagerThreads>(
      PagerThreads::Parts{std::move(complete), std::move(space), std::move(image), std::move(pins),
                          std::move(access), std::move(buffers), std::move(wake_policy),
                          std::move(links), std::move(peers), std::move(connector_bell),
                          std::move(children_bell)},
      client, std::move(on_child));
}

}  // namespace

Result<std::unique_ptr<Pager>> Pager::create(
    const PagerOptions& options, std::unique_ptr<uffd::AddressSpace> space,
    coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
    Milliseconds patience, OnChild on_child) {
  FARPAGE_TRY(image, ProcessImage::create(space->pages()));
  FARPAGE_TRY(pager, make_pager(options, space, image, client, std::move(on_child)));
  FARPAGE_TRY_VOID(pager->open(patience));
  pager->start(client, transports, true);
  return std::unique_ptr<Pager>(std::move(pager));
}

Result<std::unique_ptr<Pager>> Pager::inherit(
    const PagerOptions& options, Inheritance& inheritance, bool agent, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports, OnChild on_child) {
  FARPAGE_TRY(pager, make_pager(options, inheritance.space, inheritance.image, client,
                                std::move(on_child)));
  pager->take_over(inheritance.age_clock);
  pager->start(client, transports, agent);
  return std::unique_ptr<Pager>(std::move(pager));
}

}  // namespace farpage::pager
