// The routes of the REST API, by subject. Private to coordinator/.
#pragma once

#include <vector>

#include "coordinator/cluster.h"
#include "coordinator/event_watchers.h"
#include "coordinator/metrics.h"
#include "http/server.h"

namespace farpage::coordinator {

inline constexpr Milliseconds kMaxPollTimeout{60000};

// What the routes use; it outlives the server.
struct RouteContext {
  Cluster& cluster;
  EventWatchers& watchers;
  Metrics& metrics;
  const Clock& clock;
  Instant started{0};
};

std::vector<http::Route> node_routes(RouteContext& context);
std::vector<http::Route> region_routes(RouteContext& context);
std::vector<http::Route> image_routes(RouteContext& context);
std::vector<http::Route> cluster_routes(RouteContext& context);

// Every route of the service.
std::vector<http::Route> all_routes(RouteContext& context);

// The content of openapi.json, embedded by CMake.
extern const char kOpenApi[];

inline http::Reply no_content() {
  return http::Reply{204, "", "", {}};
}

inline http::Reply reply_to(const Status& status) {
  return status ? no_content() : http::problem_reply(status.error());
}

}  // namespace farpage::coordinator
