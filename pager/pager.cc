#include "pager/pager.h"

#include <sched.h>

#include <thread>

#include "base/doorbell.h"
#include "base/size.h"
#include "pager/borrower.h"
#include "pager/connector.h"
#include "pager/core.h"
#include "pager/discard.h"
#include "pager/evictor.h"
#include "pager/fault_worker.h"
#include "pager/pull_in.h"

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

Budget make_budget(const PagerOptions& options) {
  const uint64_t pages = options.local_bytes >> kPageShift;
  return {pages, pages * options.high_water_percent / 100, pages * options.low_water_percent / 100};
}

class PagerThreads final : public Pager {
 public:
  // What has to exist before the threads, made by create().
  struct Parts {
    PagerOptions options;
    std::unique_ptr<uffd::AddressSpace> space;
    PageTable table;
    std::unique_ptr<LeaseMap> leases;
    Mapping buffers;
    Doorbell stop_bell, connector_bell, borrower_bell;
  };

  PagerThreads(Parts parts, coordinator::Client& client)
      : parts_(std::move(parts)),
        budget_(make_budget(parts_.options)),
        core_{parts_.options, *parts_.space, parts_.table,  budget_,
              *parts_.leases, nodes_,        shared_stats_, parts_.borrower_bell},
        trends_(parts_.options.prefetch_depth) {
    make_ports();
    borrower_ =
        std::make_unique<Borrower>(core_, client, port_list(), parts_.borrower_bell,
                                   parts_.connector_bell, [this] { return stats().counters(); });
  }

  ~PagerThreads() override {
    core_.stopping.store(true, std::memory_order_release);
    parts_.stop_bell.ring();
    parts_.connector_bell.ring();
    parts_.borrower_bell.ring();
    budget_.interrupt();
    borrower_->stop();  // it reads the workers' counters
  }

  Status open(Milliseconds patience) { return borrower_->open_region(patience); }

  void start(coordinator::Client& client,
             std::vector<std::unique_ptr<rdma::Transport>>& transports) {
    connector_ =
        std::make_unique<Connector>(core_, client, transports, port_list(), parts_.connector_bell);
    const std::vector<int> cpus = allowed_cpus();
    for (uint32_t i = 0; i < parts_.options.workers; ++i) {
      const bool pin = parts_.options.pin_workers && !cpus.empty();
      workers_.push_back(std::make_unique<FaultWorker>(
          core_, FaultWorker::Ports{*ports_[2 * i], *ports_[2 * i + 1]}, trends_,
          pin ? cpus[i % cpus.size()] : -1, parts_.stop_bell));
    }
    evictor_ = std::make_unique<Evictor>(core_, *ports_.back());
    borrower_->start();
  }

  void discard(uffd::PageRun run) override { discard_pages(core_, run, BusyPages::kWait); }

  bool begin_fork() override {
    budget_.lift_limit();
    evictor_->pause();
    if (parts_.table.away_pages() == 0) return true;
    if (parts_.options.fork == ForkMode::kPullIn && pull_in(core_)) return true;
    end_fork();
    return false;
  }
  void end_fork() override {
    budget_.restore_limit();
    evictor_->resume();
  }

  uffd::AddressSpace& space() override { return *parts_.space; }
  bool target_gone() const override { return core_.target_gone.load(std::memory_order_acquire); }

  PagerStats stats() const override {
    PagerStats sum;
    for (const auto& worker : workers_) sum.add(worker->stats());
    if (evictor_) sum.add(evictor_->stats());
    sum.add(shared_stats_);
    sum.resident_pages = budget_.used();
    sum.budget_pages = budget_.limit();
    sum.away_pages = parts_.table.away_pages();
    sum.leased_slabs = borrower_->leased_slabs();
    return sum;
  }

  Status check_invariants() const override {
    FARPAGE_TRY_VOID(pager::check_invariants(parts_.table));
    uint64_t resident = 0;
    for (uint64_t b = 0; b < parts_.table.blocks(); ++b)
      resident += parts_.table.resident_in_block(b);
    if (resident != budget_.used())
      return fail(ErrorCode::kConflict, "the budget counts " + std::to_string(budget_.used()) +
                                            " pages, the table " + std::to_string(resident));
    return {};
  }

  static size_t buffer_bytes(uint32_t workers) {
    return workers * FaultWorker::kBufferBytes + Evictor::kBufferBytes;
  }

 private:
  void make_ports() {
    std::span<std::byte> rest = parts_.buffers.bytes();
    const auto take = [&](const std::string& name, size_t bytes) {
      ports_.push_back(std::make_unique<LinkPort>(name, rest.first(bytes), parts_.connector_bell));
      rest = rest.subspan(bytes);
    };
    for (uint32_t i = 0; i < parts_.options.workers; ++i) {
      take("demand-" + std::to_string(i), Fetcher::kBufferBytes);
      take("prefetch-" + std::to_string(i), Prefetcher::kBufferBytes);
    }
    take("evict", Evictor::kBufferBytes);
  }

  std::vector<LinkPort*> port_list() const {
    std::vector<LinkPort*> list;
    for (const auto& port : ports_) list.push_back(port.get());
    return list;
  }

  // In this order: what is later uses what is earlier, and is destroyed first.
  Parts parts_;
  Budget budget_;
  NodeDirectory nodes_;
  SharedStats shared_stats_;
  Core core_;
  TrendDetector trends_;
  std::vector<std::unique_ptr<LinkPort>> ports_;
  std::unique_ptr<Borrower> borrower_;
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<FaultWorker>> workers_;
  std::unique_ptr<Evictor> evictor_;
};

}  // namespace

Status validate(const PagerOptions& options) {
  const auto invalid = [](const std::string& text) { return fail(ErrorCode::kInvalid, text); };
  if (options.local_bytes < kMinLocalBytes)
    return invalid("local: at least " + format_size(kMinLocalBytes) + " of memory must stay here");
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

Result<std::unique_ptr<Pager>> Pager::create(
    const PagerOptions& options, std::unique_ptr<uffd::AddressSpace> space,
    coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
    Milliseconds patience) {
  FARPAGE_TRY_VOID(validate(options));
  PagerOptions complete = options;
  if (complete.workers == 0) {
    complete.workers = static_cast<uint32_t>(std::max<size_t>(1, allowed_cpus().size()));
    complete.workers = std::min(complete.workers, kMaxWorkers);
  }
  FARPAGE_TRY(table, PageTable::create(space->pages()));
  FARPAGE_TRY(leases, LeaseMap::create(space->pages(), complete.slab_bytes));
  FARPAGE_TRY(buffers, Mapping::anonymous(PagerThreads::buffer_bytes(complete.workers), true));
  FARPAGE_TRY(stop_bell, Doorbell::create());
  FARPAGE_TRY(connector_bell, Doorbell::create());
  FARPAGE_TRY(borrower_bell, Doorbell::create());
  auto pager = std::make_unique<PagerThreads>(
      PagerThreads::Parts{std::move(complete), std::move(space), std::move(table),
                          std::move(leases), std::move(buffers), std::move(stop_bell),
                          std::move(connector_bell), std::move(borrower_bell)},
      client);
  FARPAGE_TRY_VOID(pager->open(patience));
  pager->start(client, transports);
  return std::unique_ptr<Pager>(std::move(pager));
}

}  // namespace farpage::pager
