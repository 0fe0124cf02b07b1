#include "coordinator/service.h"

#include <fmt/format.h>

#include <functional>
#include <thread>

#include "base/host.h"
#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/candidate.h"
#include "coordinator/metrics.h"
#include "coordinator/routes.h"
#include "coordinator/seat.h"
#include "http/server.h"
#include "http/url.h"

namespace farpage::coordinator {
namespace {

// Calls `work` every `interval` on its own thread until stop().
class Periodic {
 public:
  Periodic(Milliseconds interval, std::function<void()> work)
      : interval_(interval), work_(std::move(work)), thread_([this] { loop(); }) {}
  ~Periodic() { stop(); }

  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void loop() {
    MutexLock lock(mutex_);
    while (
        !wake_.wait_for(lock, interval_, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_; })) {
      lock.unlock();
      work_();
      lock.lock();
    }
  }

  const Milliseconds interval_;
  const std::function<void()> work_;
  Mutex mutex_;
  ConditionVariable wake_;
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Status check_options(const ServiceOptions& options) {
  const auto bad = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  if (options.host.empty()) return bad("option host: must name an address of this machine");
  if (options.token.empty() && !options.insecure && !http::is_loopback(options.host))
    return bad(
        fmt::format("option token: listening on {} gives other machines access to memory and keys: "
                    "set a token, listen on 127.0.0.1, or set insecure",
                    options.host));
  if (options.request_threads == 0) return bad("option request_threads: must be 1 or more");
  if (options.tick_interval <= Milliseconds(0))
    return bad("option tick_interval: must be 1 ms or more");
  if (options.state.node_time_to_live <= Nanoseconds(0) ||
      options.state.region_time_to_live <= Nanoseconds(0))
    return bad("option node_time_to_live, region_time_to_live: must be more than 0");
  return {};
}

// The events of a new store start at the wall clock, so that they do not reuse an earlier
// coordinator's numbers (EventLog, invariant 1).
uint64_t wall_clock_us() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

StateOptions state_options(const ServiceOptions& options) {
  StateOptions state = options.state;
  state.seed = random_u64();
  state.first_sequence = wall_clock_us();
  return state;
}

class HttpService final : public Service {
 public:
  HttpService(ServiceOptions options, const Clock& clock)
      : options_(std::move(options)),
        clock_(clock),
        seat_(options_.max_long_polls),
        context_{seat_, metrics_, clock} {
    context_.started = clock.now();
  }
  ~HttpService() override { stop(); }

  // Begins to serve: leads with this cluster, or takes part in the election.
  Status start(std::shared_ptr<Cluster> cluster);
  Status start(std::unique_ptr<Election> election,
               std::function<std::unique_ptr<AgentClient>()> make_agents);
  uint16_t port() const override { return server_->port(); }
  std::string url() const override;
  void stop() override;
  std::string check() const override {
    const std::shared_ptr<Cluster> cluster = seat_.cluster();
    return cluster ? cluster->check() : "";
  }

 private:
  Status listen();
  // Calls the method of the cluster at each interval, while this coordinator leads.
  std::unique_ptr<Periodic> while_leading(void (Cluster::*work)());

  const ServiceOptions options_;
  const Clock& clock_;
  Seat seat_;
  Metrics metrics_;
  RouteContext context_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<Candidate> candidate_;  // null: not elected, there is no other one
  std::unique_ptr<Periodic> expiry_;
  std::unique_ptr<Periodic> revocations_;
  std::unique_ptr<Periodic> lending_;
  std::unique_ptr<Periodic> image_repairs_;
};

std::unique_ptr<Periodic> HttpService::while_leading(void (Cluster::*work)()) {
  return std::make_unique<Periodic>(options_.tick_interval, [this, work] {
    if (const std::shared_ptr<Cluster> cluster = seat_.cluster()) ((*cluster).*work)();
  });
}

Status HttpService::listen() {
  http::ServerOptions http;
  http.host = options_.host;
  http.port = options_.port;
  http.token = options_.token;
  http.threads = options_.request_threads;
  FARPAGE_TRY(server,
              http::Server::create(http, all_routes(context_),
                                   [this](const std::string& route, const std::string& method,
                                          int status, Nanoseconds elapsed) {
                                     metrics_.count_request(route, method, status, elapsed);
                                   }));
  server_ = std::move(server);
  expiry_ = while_leading(&Cluster::tick);
  revocations_ = while_leading(&Cluster::retry_revocations);
  lending_ = while_leading(&Cluster::adjust_lending);
  image_repairs_ = while_leading(&Cluster::repair_images);
  log::info("coordinator: serving url={} token={}", url(),
            options_.token.empty() ? "none" : "asked");
  return {};
}

Status HttpService::start(std::shared_ptr<Cluster> cluster) {
  // Before the first request.
  seat_.take(std::move(cluster), nullptr, "");
  FARPAGE_TRY_VOID(listen());
  seat_.set_url(url());
  return {};
}

Status HttpService::start(std::unique_ptr<Election> election,
                          std::function<std::unique_ptr<AgentClient>()> make_agents) {
  FARPAGE_TRY_VOID(listen());
  MakeCluster make = [this, make_agents = std::move(make_agents)](
                         std::unique_ptr<Store> store,
                         std::shared_ptr<const Term> term) -> Result<std::shared_ptr<Cluster>> {
    FARPAGE_TRY(cluster, Cluster::create(state_options(options_), std::move(store),
                                         fenced_agents(make_agents(), std::move(term)), clock_));
    return std::shared_ptr<Cluster>(std::move(cluster));
  };
  candidate_ = std::make_unique<Candidate>(std::move(election),
                                           options_.advertise.empty() ? url() : options_.advertise,
                                           std::move(make), seat_);
  return {};
}

std::string HttpService::url() const {
  return http::to_text({options_.host, port()});
}

void HttpService::stop() {
  if (candidate_) candidate_->stop();
  if (const std::shared_ptr<Cluster> cluster = seat_.cluster()) cluster->stop();
  if (const std::shared_ptr<EventWatchers> watchers = seat_.watchers()) watchers->stop();
  if (server_) server_->stop();
  if (candidate_) candidate_->resign();
  if (expiry_) expiry_->stop();
  if (revocations_) revocations_->stop();
  if (lending_) lending_->stop();
  if (image_repairs_) image_repairs_->stop();
}

}  // namespace

Result<std::unique_ptr<Service>> Service::create(ServiceOptions options,
                                                 std::unique_ptr<Store> store,
                                                 std::unique_ptr<AgentClient> agents,
                                                 const Clock& clock) {
  FARPAGE_TRY_VOID(check_options(options));
  FARPAGE_TRY(cluster,
              Cluster::create(state_options(options), std::move(store), std::move(agents), clock));
  auto service = std::make_unique<HttpService>(std::move(options), clock);
  FARPAGE_TRY_VOID(service->start(std::shared_ptr<Cluster>(std::move(cluster))));
  return service;
}

Result<std::unique_ptr<Service>> Service::create_elected(
    ServiceOptions options, std::unique_ptr<Election> election,
    std::function<std::unique_ptr<AgentClient>()> make_agents, const Clock& clock) {
  FARPAGE_TRY_VOID(check_options(options));
  auto service = std::make_unique<HttpService>(std::move(options), clock);
  FARPAGE_TRY_VOID(service->start(std::move(election), std::move(make_agents)));
  return service;
}

}  // namespace farpage::coordinator
