#include "coordinator/service.h"

#include <fmt/format.h>

#include <functional>
#include <thread>

#include "base/host.h"
#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/event_watchers.h"
#include "coordinator/metrics.h"
#include "coordinator/routes.h"
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

class HttpService final : public Service {
 public:
  HttpService(ServiceOptions options, std::unique_ptr<Cluster> cluster, const Clock& clock)
      : options_(std::move(options)),
        cluster_(std::move(cluster)),
        watchers_(*cluster_, options_.max_long_polls),
        context_{*cluster_, watchers_, metrics_, clock} {
    context_.started = clock.now();
  }
  ~HttpService() override { stop(); }

  Status start();
  uint16_t port() const override { return server_->port(); }
  std::string url() const override;
  void stop() override;
  std::string check() const override { return cluster_->check(); }

 private:
  const ServiceOptions options_;
  const std::unique_ptr<Cluster> cluster_;
  EventWatchers watchers_;
  Metrics metrics_;
  RouteContext context_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<Periodic> expiry_;
  std::unique_ptr<Periodic> revocations_;
  std::unique_ptr<Periodic> lending_;
};

Status HttpService::start() {
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
  expiry_ = std::make_unique<Periodic>(options_.tick_interval, [this] { cluster_->tick(); });
  revocations_ =
      std::make_unique<Periodic>(options_.tick_interval, [this] { cluster_->retry_revocations(); });
  lending_ =
      std::make_unique<Periodic>(options_.tick_interval, [this] { cluster_->adjust_lending(); });
  log::info("coordinator: serving url={} token={}", url(),
            options_.token.empty() ? "none" : "asked");
  return {};
}

std::string HttpService::url() const {
  const bool v6 = options_.host.find(':') != std::string::npos;
  return v6 ? fmt::format("http://[{}]:{}", options_.host, port())
            : fmt::format("http://{}:{}", options_.host, port());
}

void HttpService::stop() {
  cluster_->stop();
  watchers_.stop();
  if (server_) server_->stop();
  if (expiry_) expiry_->stop();
  if (revocations_) revocations_->stop();
  if (lending_) lending_->stop();
}

}  // namespace

Result<std::unique_ptr<Service>> Service::create(ServiceOptions options,
                                                 std::unique_ptr<Store> store,
                                                 std::unique_ptr<AgentClient> agents,
                                                 const Clock& clock) {
  FARPAGE_TRY_VOID(check_options(options));
  options.state.seed = random_u64();
  options.state.first_sequence = wall_clock_us();
  FARPAGE_TRY(cluster, Cluster::create(options.state, std::move(store), std::move(agents), clock));
  auto service = std::make_unique<HttpService>(std::move(options), std::move(cluster), clock);
  FARPAGE_TRY_VOID(service->start());
  return service;
}

}  // namespace farpage::coordinator
