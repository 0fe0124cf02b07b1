// The routes of the REST API, by subject. Private to coordinator/.
#pragma once

#include <atomic>
#include <vector>

#include "coordinator/cluster.h"
#include "coordinator/http_server.h"
#include "coordinator/metrics.h"

namespace farpage::coordinator {

inline constexpr Milliseconds kMaxPollTimeout{60000};

// What the routes use; it outlives the server.
struct RouteContext {
  Cluster& cluster;
  Metrics& metrics;
  const Clock& clock;
  Instant started{0};
  uint32_t max_long_polls = 0;
  std::atomic<uint32_t> long_polls{0};
};

std::vector<Route> node_routes(RouteContext& context);
std::vector<Route> region_routes(RouteContext& context);
std::vector<Route> cluster_routes(RouteContext& context);

// Every route of the service.
std::vector<Route> all_routes(RouteContext& context);

// The content of openapi.json, embedded by CMake.
extern const char kOpenApi[];

inline HttpReply no_content() {
  return HttpReply{204, "", "", {}};
}

inline HttpReply reply_to(const Status& status) {
  return status ? no_content() : problem_reply(status.error());
}

}  // namespace farpage::coordinator
