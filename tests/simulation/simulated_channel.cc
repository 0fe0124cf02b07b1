#include "simulated_channel.h"

#include <algorithm>

namespace farpage::simulation {
namespace {

constexpr Nanoseconds kAnswer = std::chrono::microseconds(5);
constexpr Nanoseconds kLate = Milliseconds(60);  // twice the operation timeout

// Each operation takes effect at a time of its own; its completion comes later, or after the
// operation timeout if the node does not answer.
class SimulatedChannel final : public rdma::Channel {
 public:
  SimulatedChannel(Scheduler& scheduler, SimulatedNode& node, const rdma::ChannelOptions& options,
                   const Weather& weather)
      : scheduler_(scheduler),
        node_(node),
        options_(options),
        weather_(weather),
        number_(node.enter(options.session)) {}
  ~SimulatedChannel() override {
    for (const auto& flight : flights_) flight->abandoned = true;
  }

  rdma::ChannelLimits limits() const override { return {64, 16, 1U << 20}; }
  rdma::TransportKind kind() const override { return rdma::TransportKind::kShm; }

  size_t post(std::span<const rdma::Operation> operations) override {
    scheduler_.step();
    if (broken_) return 0;
    node_.advance();
    size_t accepted = 0;
    for (const rdma::Operation& operation : operations) {
      if (flights_.size() == limits().operations_in_flight || once_in(weather_.refused)) break;
      flights_.push_back(send(operation));
      node_.post(flights_.back());
      ++accepted;
    }
    return accepted;
  }

  size_t poll(std::span<rdma::Completion> completions) override {
    scheduler_.step();
    node_.advance();
    size_t count = 0;
    for (auto at = flights_.begin(); at != flights_.end() && count < completions.size();) {
      const auto status = status_of(**at);
      if (!status) {
        ++at;
        continue;
      }
      completions[count++] = {(*at)->operation.token, *status};
      if (*status == rdma::CompletionStatus::kOk) (*at)->again = Instant{0};
      (*at)->abandoned = true;
      at = flights_.erase(at);
    }
    return count;
  }

  size_t wait(std::span<rdma::Completion> completions, Nanoseconds timeout) override {
    const Instant end = scheduler_.now() + timeout;
    while (!flights_.empty()) {
      const size_t count = poll(completions);
      if (count > 0 || scheduler_.now() >= end) return count;
      scheduler_.sleep(std::chrono::microseconds(2));
    }
    return 0;
  }

  bool usable() const override { return !broken_; }
  std::string why_broken() const override { return broken_ ? "the node does not answer" : ""; }

 private:
  bool once_in(uint64_t operations) { return operations != 0 && scheduler_.chance(operations); }

  std::shared_ptr<Flight> send(const rdma::Operation& operation) {
    auto flight = std::make_shared<Flight>();
    const Instant now = scheduler_.now();
    const bool late = once_in(weather_.late);
    const bool is_write = operation.kind == rdma::OperationKind::kWrite;
    flight->operation = operation;
    flight->session = options_.session;
    flight->channel = number_;
    flight->posted = now;
    flight->effect =
        now + kAnswer + scheduler_.choose_time(late ? kLate : std::chrono::microseconds(20));
    flight->answer = flight->effect + scheduler_.choose_time(std::chrono::microseconds(10));
    if (once_in(weather_.unanswered)) flight->answer = Instant(INT64_MAX);
    // What comes late is in a socket's buffer meanwhile; else it is read from memory at its effect.
    if (is_write && (late || flight->answer.count() == INT64_MAX || scheduler_.chance(4)))
      flight->sent.assign(operation.local.begin(), operation.local.end());
    if (is_write && !flight->sent.empty() && flight->answer > now + options_.operation_timeout)
      flight->again = flight->effect + scheduler_.choose_time(kLate);
    return flight;
  }

  // nullopt: in flight.
  std::optional<rdma::CompletionStatus> status_of(const Flight& flight) {
    const Instant now = scheduler_.now();
    if (flight.effective && flight.answer <= now && !broken_) return flight.result;
    if (broken_) return rdma::CompletionStatus::kFlushed;
    if (node_.is_fenced(options_.session, number_)) {
      give_up();
      return rdma::CompletionStatus::kPeerGone;
    }
    if (now - flight.posted < options_.operation_timeout) return std::nullopt;
    give_up();
    return rdma::CompletionStatus::kTimedOut;
  }
  void give_up() {
    broken_ = true;
    for (const auto& flight : flights_) flight->abandoned = true;
  }

  Scheduler& scheduler_;
  SimulatedNode& node_;
  const rdma::ChannelOptions options_;
  const Weather weather_;
  const uint64_t number_;
  bool broken_ = false;
  std::deque<std::shared_ptr<Flight>> flights_;
};

class SimulatedTransport final : public rdma::Transport {
 public:
  SimulatedTransport(Scheduler& scheduler, std::vector<std::unique_ptr<SimulatedNode>>& nodes,
                     const Weather& weather)
      : scheduler_(scheduler), nodes_(nodes), weather_(weather) {}

  rdma::TransportKind kind() const override { return rdma::TransportKind::kShm; }
  Result<std::unique_ptr<rdma::Channel>> connect(const rdma::TransportAddress& address,
                                                 const rdma::ChannelOptions& options,
                                                 const rdma::QueuePairExchange&) override {
    SimulatedNode& node = *nodes_.at(std::stoul(address.text));
    scheduler_.sleep(scheduler_.choose_time(std::chrono::microseconds(200)));
    if (!node.alive() || scheduler_.now() < node.silent_until())
      return fail(ErrorCode::kUnavailable, "the node does not answer");
    node.advance();
    return std::make_unique<SimulatedChannel>(scheduler_, node, options, weather_);
  }

 private:
  Scheduler& scheduler_;
  std::vector<std::unique_ptr<SimulatedNode>>& nodes_;
  const Weather weather_;
};

}  // namespace

std::unique_ptr<rdma::Transport> make_transport(Scheduler& scheduler,
                                                std::vector<std::unique_ptr<SimulatedNode>>& nodes,
                                                const Weather& weather) {
  return std::make_unique<SimulatedTransport>(scheduler, nodes, weather);
}

}  // namespace farpage::simulation
