#include "coordinator/candidate.h"

#include <fmt/format.h>

#include "base/log.h"

namespace farpage::coordinator {
namespace {

constexpr Milliseconds kLookAtTerm{100};
constexpr Milliseconds kAfterFailure{2000};  // the store could not be read: let another one try

class FencedAgents final : public AgentClient {
 public:
  FencedAgents(std::unique_ptr<AgentClient> agents, std::shared_ptr<const Term> term)
      : agents_(std::move(agents)), term_(std::move(term)) {}

  std::vector<Result<SlabLeaseReply>> lease(const std::string& agent_url,
                                            std::span<const NodeSlabRequest> slabs) override {
    if (const Status held = check(); !held)
      return std::vector<Result<SlabLeaseReply>>(slabs.size(), tl::unexpected(held.error()));
    return agents_->lease(agent_url, slabs);
  }
  Status revoke(const std::string& agent_url, uint32_t node_slab, Generation generation) override {
    FARPAGE_TRY_VOID(check());
    return agents_->revoke(agent_url, node_slab, generation);
  }
  Status add_slabs(const std::string& agent_url, std::span<const uint32_t> node_slabs,
                   uint32_t in_all) override {
    FARPAGE_TRY_VOID(check());
    return agents_->add_slabs(agent_url, node_slabs, in_all);
  }
  Status withdraw_slabs(const std::string& agent_url,
                        std::span<const uint32_t> node_slabs) override {
    FARPAGE_TRY_VOID(check());
    return agents_->withdraw_slabs(agent_url, node_slabs);
  }
  Status repair_image(const std::string& agent_url, const ImageId& image) override {
    FARPAGE_TRY_VOID(check());
    return agents_->repair_image(agent_url, image);
  }
  Result<rdma::QueuePairEndpoint> connect(const std::string& agent_url,
                                          const rdma::QueuePairEndpoint& peer) override {
    FARPAGE_TRY_VOID(check());
    return agents_->connect(agent_url, peer);
  }
  // Changes nothing; and a refusal would say that no node answers there.
  Result<uint64_t> incarnation(const std::string& agent_url) override {
    return agents_->incarnation(agent_url);
  }

 private:
  Status check() const {
    if (term_->is_held()) return {};
    return fail(ErrorCode::kUnavailable, "this coordinator does not lead at the moment");
  }

  const std::unique_ptr<AgentClient> agents_;
  const std::shared_ptr<const Term> term_;
};

}  // namespace

std::unique_ptr<AgentClient> fenced_agents(std::unique_ptr<AgentClient> agents,
                                           std::shared_ptr<const Term> term) {
  return std::make_unique<FencedAgents>(std::move(agents), std::move(term));
}

Candidate::Candidate(std::unique_ptr<Election> election, std::string url, MakeCluster make,
                     Seat& seat)
    : election_(std::move(election)),
      url_(std::move(url)),
      make_(std::move(make)),
      seat_(seat),
      thread_([this] { run(); }) {}

Candidate::~Candidate() {
  stop();
  resign();
}

void Candidate::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Candidate::resign() {
  if (term_) term_->resign();
  term_.reset();
}

bool Candidate::is_stopping() const {
  const MutexLock lock(mutex_);
  return stopping_;
}

void Candidate::wait(Milliseconds limit) const {
  MutexLock lock(mutex_);
  changed_.wait_for(lock, limit, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; });
}

void Candidate::tell(const std::string& what) {
  if (what != told_) log::info("coordinator: {}", what);
  told_ = what;
}

void Candidate::run() {
  while (!is_stopping()) {
    Result<Campaign> campaign = election_->campaign(url_);
    if (campaign && campaign->term) {
      lead(std::move(*campaign));
      continue;
    }
    if (campaign) {
      seat_.leave_to(campaign->leader);
      tell(fmt::format("follows leader={}", campaign->leader));
    } else {
      seat_.leave_to("");
      tell(fmt::format("no election reason=\"{}\"", campaign.error().message()));
    }
    wait(election_->pause());
  }
}

void Candidate::lead(Campaign won) {
  term_ = won.term;
  auto cluster = make_(std::move(won.store), won.term);
  if (!cluster) {
    log::error("coordinator: cannot lead reason=\"{}\"", cluster.error().message());
    resign();
    return wait(kAfterFailure);
  }
  seat_.take(*cluster, won.term, url_);
  tell(fmt::format("leads url={}", url_));
  while (!is_stopping() && !won.term->has_ended()) wait(kLookAtTerm);
  seat_.leave_to("");
  (*cluster)->stop();
  if (!is_stopping()) resign();
}

}  // namespace farpage::coordinator
