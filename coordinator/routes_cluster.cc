#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "coordinator/api_json.h"
#include "coordinator/routes.h"
#include "http/problem.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

constexpr char kPage[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>farpage coordinator</title></head>
<body><h1>farpage coordinator</h1><ul>
<li><a href="/v1/cluster">/v1/cluster</a> totals</li>
<li><a href="/v1/nodes">/v1/nodes</a> memory nodes</li>
<li><a href="/v1/regions">/v1/regions</a> regions and their leases</li>
<li><a href="/v1/images">/v1/images</a> images of guests</li>
<li><a href="/v1/events">/v1/events</a> what happened</li>
<li><a href="/metrics">/metrics</a> for Prometheus</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>, <a href="/version">/version</a></li>
<li><a href="/openapi.json">/openapi.json</a> every route</li>
</ul></body></html>
)";

std::optional<uint64_t> parse_u64(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Seconds with up to three decimals.
std::optional<Milliseconds> parse_seconds(std::string_view text) {
  const size_t dot = text.find('.');
  const auto whole = parse_u64(text.substr(0, dot));
  if (!whole || *whole > 3600) return std::nullopt;
  uint64_t thousandths = 0;
  if (dot != std::string_view::npos) {
    const std::string_view decimals = text.substr(dot + 1);
    const auto parsed = parse_u64(decimals);
    if (!parsed || decimals.size() > 3) return std::nullopt;
    thousandths = *parsed;
    for (size_t digits = decimals.size(); digits < 3; ++digits) thousandths *= 10;
  }
  return Milliseconds(static_cast<int64_t>(*whole * 1000 + thousandths));
}

struct EventQuery {
  uint64_t since = 0;
  Milliseconds timeout{0};
};

Result<EventQuery> event_query(const http::Request& request) {
  EventQuery query;
  if (const auto it = request.query.find("since"); it != request.query.end()) {
    const auto parsed = parse_u64(it->second);
    if (!parsed)
      return fail(ErrorCode::kInvalid,
                  "the query parameter since must be the next_since of an earlier answer, or 0");
    query.since = *parsed;
  }
  if (const auto it = request.query.find("timeout"); it != request.query.end()) {
    const auto parsed = parse_seconds(it->second);
    if (!parsed || *parsed > kMaxPollTimeout)
      return fail(ErrorCode::kInvalid,
                  "the query parameter timeout must be seconds from 0 to 60, with up to three "
                  "decimals");
    query.timeout = *parsed;
  }
  return query;
}

void events(const RouteContext& context, const http::Request& request,
            std::shared_ptr<http::PendingReply> pending) {
  const std::shared_ptr<EventWatchers> watchers = context.seat.watchers();
  if (watchers == nullptr) return pending->reply(not_leading(context.seat.leader()));
  const auto query = event_query(request);
  if (!query) return pending->reply(http::problem_reply(query.error()));
  if (query->timeout == Milliseconds(0))
    return pending->reply(http::Reply{200, encode(watchers->cluster().events(query->since))});
  if (watchers->add(query->since, query->timeout, pending)) return;
  http::Reply reply =
      http::problem_reply(Error{ErrorCode::kUnavailable,
                                "too many long polls are waiting: try again, or ask with "
                                "timeout=0",
                                0});
  reply.headers.emplace("Retry-After", "1");
  pending->reply(reply);
}

http::Reply totals(const RouteContext& context, const Cluster& cluster) {
  const ClusterSummary facts = cluster.summary();
  const Totals& t = facts.totals;
  const auto uptime =
      std::chrono::duration_cast<Milliseconds>(context.clock.now() - context.started);
  return http::Reply{200,
                     Json{{"version", FARPAGE_VERSION},
                          {"uptime_ms", uptime.count()},
                          {"store", facts.store_kind},
                          {"leader", context.seat.leader()},
                          {"last_sequence", facts.last_sequence},
                          {"nodes",
                           {{"alive", t.nodes_alive},
                            {"cordoned", t.nodes_cordoned},
                            {"draining", t.nodes_draining},
                            {"lost", t.nodes_lost}}},
                          {"slabs",
                           {{"total", t.slabs},
                            {"free", t.slabs_free},
                            {"unavailable", t.slabs_unavailable},
                            {"placing", t.slabs_placing},
                            {"leased", t.slabs_leased},
                            {"revoking", t.slabs_revoking},
                            {"foreign", t.slabs_foreign},
                            {"degraded", t.slabs_degraded},
                            {"repairing", t.slabs_repairing},
                            {"moving", t.slabs_moving},
                            {"spilled", t.slabs_spilled}}},
                          {"bytes",
                           {{"total", t.bytes},
                            {"free", t.bytes_free},
                            {"spill", t.bytes_spill},
                            {"spill_free", t.bytes_spill_free}}},
                          {"regions", t.regions},
                          {"leases", {{"held", t.leases - t.leases_lost}, {"lost", t.leases_lost}}},
                          {"pending_revocations", facts.pending_revocations}}
                         .dump()};
}

// Those of the cluster are with the coordinator that leads.
std::string metrics_text(const RouteContext& context) {
  const std::shared_ptr<Cluster> cluster = context.seat.cluster();
  const std::shared_ptr<EventWatchers> watchers = context.seat.watchers();
  return context.metrics.text(cluster ? std::optional(cluster->facts()) : std::nullopt,
                              watchers ? watchers->waiting() : 0);
}

http::Reply ready(const Cluster& cluster) {
  if (!cluster.store_works())
    return http::problem_reply(
        Error{ErrorCode::kUnavailable, "the store cannot be written: see the log", 0});
  return http::Reply{200, Json{{"status", "ready"}}.dump()};
}

}  // namespace

http::Reply not_leading(const std::string& leader) {
  const Error error{ErrorCode::kUnavailable,
                    leader.empty()
                        ? "no coordinator leads at the moment: try again"
                        : fmt::format("another coordinator leads: ask the one at {}", leader),
                    0};
  http::Reply reply = http::problem_reply(error);
  reply.body = http::encode_problem(reply.status, error, leader);
  reply.headers.emplace("Retry-After", "1");
  return reply;
}

std::vector<http::Route> cluster_routes(RouteContext& context) {
  const auto fixed = [](std::string body, std::string type) {
    return [body = std::move(body), type = std::move(type)](const http::Request&) {
      return http::Reply{200, body, type, {}};
    };
  };
  const std::string json = "application/json";
  http::Route follow{"GET", "/v1/events", {"since", "timeout"}, nullptr};
  follow.later_handler = [&context](const http::Request& request,
                                    std::shared_ptr<http::PendingReply> pending) {
    events(context, request, std::move(pending));
  };
  return {
      std::move(follow),
      {"GET", "/v1/store", {}, context.with([](Cluster& cluster, const http::Request&) {
         auto copy = cluster.copy_store();
         if (!copy) return http::problem_reply(copy.error());
         return http::Reply{200, std::move(*copy), "application/vnd.sqlite3", {}};
       })},
      {"GET",
       "/v1/cluster",
       {},
       [&context](const http::Request&) {
         return context.lead([&](const Cluster& cluster) { return totals(context, cluster); });
       }},
      {"GET",
       "/metrics",
       {},
       [&context](const http::Request&) {
         return http::Reply{
             200, metrics_text(context), "text/plain; version=0.0.4; charset=utf-8", {}};
       }},
      {"GET",
       "/healthz",
       {},
       fixed(R"({"status":"ok"})", json),
       http::Body::kNone,
       http::Access::kOpen},
      {"GET",
       "/readyz",
       {},
       [&context](const http::Request&) { return context.lead(ready); },
       http::Body::kNone,
       http::Access::kOpen},
      {"GET",
       "/version",
       {},
       fixed(Json{{"version", FARPAGE_VERSION}, {"api", "v1"}}.dump(), json),
       http::Body::kNone,
       http::Access::kOpen},
      {"GET", "/openapi.json", {}, fixed(kOpenApi, json)},
      {"GET", "/", {}, fixed(kPage, "text/html; charset=utf-8")},
  };
}

std::vector<http::Route> all_routes(RouteContext& context) {
  std::vector<http::Route> routes = node_routes(context);
  for (http::Route& route : region_routes(context)) routes.push_back(std::move(route));
  for (http::Route& route : image_routes(context)) routes.push_back(std::move(route));
  for (http::Route& route : cluster_routes(context)) routes.push_back(std::move(route));
  return routes;
}

}  // namespace farpage::coordinator
