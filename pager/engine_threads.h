// EngineThreads: the engine behind engine.h, as its targets see it.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/doorbell.h"
#include "base/mutex.h"
#include "pager/engine.h"
#include "pager/engine_core.h"
#include "pager/evict/evictor.h"
#include "pager/fault/fault_worker.h"
#include "pager/fault/readahead.h"
#include "pager/fork/backing_region.h"
#include "pager/links/borrower_thread.h"
#include "pager/links/connector.h"
#include "pager/links/link_port.h"
#include "pager/links/repairer.h"

namespace farpage::pager {

// Threads: as Engine.
class EngineThreads final : public Engine {
 public:
  // Made before the threads, by Engine::create().
  struct Parts {
    PagerOptions options;
    Succession succession;
    NodeTable<PeerState> peers;
    TargetSet targets;
    Mapping buffers;
    std::vector<LinkPort::Links> links;  // of each port
    std::vector<uint64_t> sessions;      // the same
    std::unique_ptr<WakePolicy> wake_policy;
    Doorbell connector_bell;
    std::unique_ptr<BorrowerThread> borrower_thread;
    rdma::SlabFile* file = nullptr;
  };
  // Two of each worker, the evictor's, and the repairer's.
  static size_t port_count(uint32_t workers) { return size_t{2} * workers + 2; }
  static std::string port_name(size_t port, uint32_t workers);
  static size_t buffer_bytes(uint32_t workers) {
    return workers * FaultWorker::kBufferBytes + EvictionBatch::kBufferBytes +
           Repairer::kBufferBytes;
  }

  EngineThreads(Parts parts, coordinator::Client& client,
                std::vector<std::unique_ptr<rdma::Transport>>& transports);
  // Before all else: what a predecessor has left.
  Status take_over();
  ~EngineThreads() override;

  Result<std::unique_ptr<Pager>> add(const TargetOptions& options,
                                     std::unique_ptr<uffd::AddressSpace> space,
                                     Milliseconds patience, OnChild on_child) override;
  Result<std::unique_ptr<Pager>> adopt(const TargetOptions& options, Inheritance& inheritance,
                                       OnChild on_child) override;
  Result<std::unique_ptr<Pager>> restore(const TargetOptions& options,
                                         std::unique_ptr<uffd::AddressSpace>& space,
                                         std::shared_ptr<const StoredPages> stored) override;
  Result<std::unique_ptr<Pager>> resume(const ResumeOptions& options,
                                        std::unique_ptr<uffd::AddressSpace>& space,
                                        OnChild on_child) override;
  bool can_resume(uint64_t number) override;
  void end_succession(const std::set<uint64_t>& resumed) override;

  // From now on its faults are answered and its pages evicted.
  Status start(Target& target);
  // Returns when no thread of the engine refers to the target. Target::closing is set.
  void remove(Target& target);

  EngineCore& core() { return core_; }
  coordinator::Client& client() { return client_; }
  BorrowerThread& borrower_thread() { return *borrower_thread_; }
  Evictor& evictor() { return *evictor_; }
  const Repairer& repairer() const { return *repairer_; }
  // nullptr: threads resolve their own faults, and a read of the pager fetches nothing.
  Readahead* readahead() { return readahead_.get(); }
  // Channels to this node will be needed soon.
  void node_wanted(NodeIndex node);
  // The same, and asks the coordinator for it if it is not known. nullopt: it has left.
  Result<std::optional<NodeIndex>> index_of(const NodeId& id);
  // Pager::resolve().
  void resolve(Target& target, PageIndex page, uffd::FaultKind kind);
  // The counters of the engine are reported once: by its oldest target.
  bool is_oldest(const Target& target) const {
    return oldest_.load(std::memory_order_relaxed) == &target;
  }

 private:
  // Gives the image the backing region of these pages.
  Status add_stored(ProcessImage& image, std::shared_ptr<const StoredPages> stored);
  // A target of the predecessor, until it is resumed.
  struct Heir {
    TargetRecord record;
    std::unique_ptr<ProcessImage> snapshot;  // of the fork
    std::unique_ptr<ProcessImage> image;
    BackingRegionList own;
  };

  void make_ports(std::vector<LinkPort::Links> links, const std::vector<uint64_t>& sessions);
  void make_workers();
  std::vector<LinkPort*> port_list() const;
  // For a thread in resolve(): the index of a worker that it alone uses until it clears `taken_`.
  size_t take_worker(uint32_t thread);
  std::optional<size_t> try_take_worker(uint32_t thread);

  coordinator::Client& client_;
  const Mapping buffers_;
  const std::unique_ptr<WakePolicy> wake_policy_;
  const Doorbell connector_bell_;
  const std::unique_ptr<BorrowerThread> borrower_thread_;
  EngineCore core_;
  std::vector<std::unique_ptr<LinkPort>> ports_;
  // Outlives the backing regions, its thread ends before the others.
  std::unique_ptr<Repairer> repairer_;
  Mutex heirs_mutex_;
  std::map<uint64_t, Heir> heirs_ FARPAGE_GUARDED_BY(heirs_mutex_);  // by number
  std::vector<Heir> leftovers_;  // that nobody resumes: then the cleaner's
  std::atomic<const Target*> oldest_{nullptr};
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<FaultWorker>> workers_;
  std::array<std::atomic_flag, kMaxWorkers> taken_{};  // by a thread in resolve()
  // Threads that have waited for long have turns: the one whose turn it is gets the next worker.
  std::atomic<uint64_t> next_turn_{0};
  std::atomic<uint64_t> turn_{0};
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Readahead> readahead_;
  std::jthread cleaner_;
};

}  // namespace farpage::pager
