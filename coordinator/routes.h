// The routes of the REST API, by subject. Private to coordinator/.
#pragma once

#include <vector>

#include "coordinator/cluster.h"
#include "coordinator/event_watchers.h"
#include "coordinator/metrics.h"
#include "coordinator/seat.h"
#include "http/server.h"

namespace farpage::coordinator {

inline constexpr Milliseconds kMaxPollTimeout{60000};

// 503, with the URL of the coordinator that leads; empty: nobody does at the moment.
http::Reply not_leading(const std::string& leader);

// What the routes use; it outlives the server.
struct RouteContext {
  const Seat& seat;
  Metrics& metrics;
  const Clock& clock;
  Instant started{0};

  // What use(cluster) answers; or, while this coordinator does not lead, who does.
  template <typename Use>
  http::Reply lead(Use use) const {
    const std::shared_ptr<Cluster> cluster = seat.cluster();
    return cluster ? use(*cluster) : not_leading(seat.leader());
  }
  // A handler that answers use(cluster, request) while this coordinator leads.
  template <typename Use>
  auto with(Use use) const {
    return [this, use](const http::Request& request) {
      return lead([&](Cluster& cluster) { return use(cluster, request); });
    };
  }
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
