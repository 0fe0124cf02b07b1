// What the service refuses: framing, tokens, paths, methods, and malformed bodies.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "coordinator/api_json.h"
#include "http/server.h"
#include "tests/unit/coordinator/test_service.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::coordinator {
namespace {

void expect_problem(const RawAnswer& answer, int status) {
  EXPECT_EQ(answer.status, status) << answer.head << answer.body;
  EXPECT_TRUE(answer.is_problem()) << answer.head;
  const auto problem = nlohmann::json::parse(answer.body, nullptr, false);
  ASSERT_TRUE(problem.is_object()) << answer.body;
  for (const char* key : {"type", "title", "status", "detail", "code"})
    EXPECT_TRUE(problem.contains(key)) << key;
  EXPECT_EQ(problem["status"], status);
}

TEST_F(ServiceTest, FramingThatIsNotServedIsRefused) {
  const std::string json = "Content-Type: application/json\r\n";
  const auto with = [&](const std::string& headers, const std::string& body) {
    return raw_request(port(), "POST", "/v1/regions", body, json + headers);
  };
  expect_problem(with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), 501);
  expect_problem(with("Transfer-Encoding: identity\r\n", "{}"), 501);
  expect_problem(with("Content-Encoding: gzip\r\n", "{}"), 415);
  expect_problem(with("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"), 400);
  expect_problem(with("Content-Length: -2\r\n", "{}"), 400);
  expect_problem(with("Content-Length: two\r\n", "{}"), 400);
  expect_problem(with("Content-Length: 99999999999999999999\r\n", "{}"), 400);
  expect_problem(with("Content-Length: 1048577\r\n", "{}"), 413);
  expect_problem(raw_request(port(), "POST", "/v1/regions", "{}", "Content-Type: text/plain\r\n"),
                 415);
  expect_problem(raw_request(port(), "POST", "/v1/regions", "a=b",
                             "Content-Type: application/x-www-form-urlencoded\r\n"),
                 415);
  expect_problem(raw_request(port(), "POST", "/v1/regions", "x",
                             "Content-Type: multipart/form-data; boundary=x\r\n"),
                 415);
  expect_problem(raw_request(port(), "GET", "/v1/nodes", "", "Range: bytes=0-1\r\n"), 416);
  EXPECT_TRUE(client_->nodes().has_value());
}

TEST_F(ServiceTest, HostileHeadersDoNoHarm) {
  // Long range lists and long names are expensive for regular expressions.
  std::string ranges = "Range: bytes=0-1";
  while (ranges.size() < 7000) ranges += ",0-1";
  EXPECT_GE(raw_request(port(), "GET", "/v1/nodes", "", ranges + "\r\n").status, 400);
  expect_problem(raw_request(port(), "GET", "/v1/" + std::string(7000, 'a')), 414);
  expect_problem(raw_request(port(), "GET", "/v1/" + std::string(9000, 'a')), 414);
  raw_request(port(), "GET", "/v1/nodes", "", "X: " + std::string(100000, 'a') + "\r\n");
  raw_exchange(port(), "GARBAGE\r\n\r\n");
  raw_exchange(port(), std::string("\0\0\0\r\n\r\n", 7));
  raw_exchange(port(), "GET / HTTP/9.9\r\n\r\n");
  EXPECT_TRUE(client_->nodes().has_value());
}

TEST_F(ServiceTest, UnknownPathIs404AndWrongMethodIs405WithAllow) {
  for (const char* path : {"/v1", "/v1/nodes/", "/v2/nodes", "/v1/nodes/a/b", "/v1/nodes/a%2fb",
                           "/v1/nodes/..", "/v1/nodes/a%00", "/v1/nodes/%0a", "//", "/metrics/x"})
    expect_problem(raw_request(port(), "GET", path), 404);
  const RawAnswer wrong = raw_request(port(), "PUT", "/v1/nodes", "{}");
  expect_problem(wrong, 405);
  EXPECT_NE(wrong.head.find("Allow: POST, GET"), std::string::npos) << wrong.head;
  for (const char* method : {"PATCH", "OPTIONS", "TRACE", "CONNECT"})
    expect_problem(raw_request(port(), method, "/v1/nodes"), 405);
  EXPECT_EQ(raw_request(port(), "HEAD", "/healthz").status, 200);
}

TEST_F(ServiceTest, WrongQueryParametersAreRefused) {
  for (const char* target :
       {"/v1/events?since=x", "/v1/events?since=-1", "/v1/events?since=", "/v1/events?timeout=61",
        "/v1/events?timeout=-1", "/v1/events?timeout=1.2345", "/v1/events?timeout=1.",
        "/v1/events?timeout=1e1", "/v1/events?colour=red", "/v1/events?since=1&since=2",
        "/v1/nodes?x=1"})
    expect_problem(raw_request(port(), "GET", target), 400);
  expect_problem(raw_request(port(), "DELETE", "/v1/nodes/n1?force=yes"), 400);
}

TEST_F(ServiceTest, ABodyThatWouldHaveNoEffectIs400) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  expect_problem(raw_request(port(), "POST", "/v1/nodes/n1/drain", R"({"timeout":"1m"})"), 400);
  expect_problem(raw_request(port(), "DELETE", "/v1/nodes/n1", R"({"force":true})"), 400);
  expect_problem(raw_request(port(), "DELETE", "/v1/regions/r1", "{}"), 400);
  expect_problem(raw_request(port(), "GET", "/v1/nodes", "{}"), 400);
  EXPECT_EQ(client_->node(NodeId{"n1"})->state, NodeState::kAlive);
}

TEST_F(ServiceTest, ThingsThatAreNotThereAre404) {
  for (const char* path : {"/v1/nodes/n1", "/v1/regions/r1", "/v1/nodes/n1/rdma/endpoint"})
    expect_problem(raw_request(port(), "GET", path), 404);
  expect_problem(raw_request(port(), "DELETE", "/v1/nodes/n1"), 404);
  expect_problem(raw_request(port(), "DELETE", "/v1/regions/r1"), 404);
  expect_problem(raw_request(port(), "POST", "/v1/nodes/n1/drain"), 404);
  expect_problem(raw_request(port(), "POST", "/v1/regions/r1/slabs", R"({"slabs":[0]})"), 404);
  expect_problem(raw_request(port(), "POST", "/v1/regions/r1/slabs/release", R"({"slabs":[0]})"),
                 404);
  expect_problem(raw_request(port(), "PUT", "/v1/regions/r1/heartbeat", "{}"), 404);
}

TEST_F(ServiceTest, WrongFieldIs422AndNamed) {
  const RawAnswer answer = raw_request(port(), "POST", "/v1/regions", R"({"name":"a b"})");
  expect_problem(answer, 422);
  EXPECT_NE(answer.body.find(R"("field":"name")"), std::string::npos);
  expect_problem(raw_request(port(), "POST", "/v1/regions", "{"), 400);
}

TEST_F(ServiceTest, RequestsWithoutTheRightTokenAre401) {
  ServiceOptions options = test_options();
  options.token = "open-sesame";
  start(options);
  EXPECT_TRUE(client_->nodes().has_value());
  for (const char* token : {"", "open-sesam", "open-sesamf", "open-sesame2", "OPEN-SESAME"})
    EXPECT_EQ(client(token)->nodes().error().code, ErrorCode::kDenied) << token;
  const RawAnswer answer = raw_request(port(), "GET", "/v1/nodes");
  expect_problem(answer, 401);
  EXPECT_NE(answer.head.find("WWW-Authenticate: Bearer"), std::string::npos);
  for (const char* scheme : {"Bearer", "bearer", "BEARER"}) {
    const std::string header = std::string("Authorization: ") + scheme + " open-sesame\r\n";
    EXPECT_EQ(raw_request(port(), "GET", "/v1/nodes", "", header).status, 200) << scheme;
  }
  expect_problem(
      raw_request(port(), "GET", "/v1/nodes", "", "Authorization: Basic b3Blbi1zZXNhbWU=\r\n"),
      401);
  for (const char* path :
       {"/", "/metrics", "/openapi.json", "/v1/cluster", "/v1/events", "/nowhere"})
    EXPECT_EQ(raw_request(port(), "GET", path).status, 401) << path;
  for (const char* path : {"/healthz", "/readyz", "/version"})
    EXPECT_EQ(raw_request(port(), "GET", path).status, 200) << path;
}

TEST_F(ServiceTest, APushedHistogramComesOutAsAPrometheusHistogramInSeconds) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  RegionHeartbeat heartbeat;
  heartbeat.counters = {{"farpage_fault_seconds_bucket{le=\"0.01\"}", 5},
                        {"farpage_fault_seconds_bucket{le=\"0.000005\"}", 1},
                        {"farpage_fault_seconds_bucket{le=\"0.001\"}", 4},
                        {"farpage_fault_seconds_count", 6},
                        {"farpage_fault_seconds_sum_ns", 1'500'000'000}};
  ASSERT_TRUE(client_->heartbeat_region(region->id, heartbeat).has_value());
  const std::string owner = "region=\"" + region->id.value + "\",name=\"test\"";
  const std::string expected =
      "# TYPE farpage_fault_seconds histogram\n"
      "farpage_fault_seconds_count{" +
      owner +
      "} 6\n"
      "farpage_fault_seconds_sum{" +
      owner +
      "} 1.5\n"
      "farpage_fault_seconds_bucket{" +
      owner +
      ",le=\"5e-06\"} 1\n"
      "farpage_fault_seconds_bucket{" +
      owner +
      ",le=\"0.001\"} 4\n"
      "farpage_fault_seconds_bucket{" +
      owner +
      ",le=\"0.01\"} 5\n"
      "farpage_fault_seconds_bucket{" +
      owner + ",le=\"+Inf\"} 6\n";
  EXPECT_THAT(*client_->get("/metrics"), testing::HasSubstr(expected));
}

TEST_F(ServiceTest, Defect11MetricsChangeAndMatchWhatWasPushed) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  const auto metrics = [&] { return *client_->get("/metrics"); };
  const auto has = [](const std::string& text, const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_EQ(metrics().find("farpage_faults_total"), std::string::npos);
  for (const uint64_t faults : {uint64_t{12}, uint64_t{123456789}}) {
    RegionHeartbeat heartbeat;
    heartbeat.counters = {{"farpage_faults_total{kind=\"remote\"}", faults},
                          {"farpage_faults_total{kind=\"zero\"}", faults + 1},
                          {"resident_bytes", 4096}};
    ASSERT_TRUE(client_->heartbeat_region(region->id, heartbeat).has_value());
    ASSERT_TRUE(
        client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 3, {{"reads_total", faults}}})
            .has_value());
    const std::string text = metrics();
    const std::string owner = "region=\"" + region->id.value + "\",name=\"test\"";
    EXPECT_TRUE(
        has(text, "farpage_faults_total{kind=\"remote\"," + owner + "} " + std::to_string(faults)))
        << text;
    EXPECT_TRUE(has(
        text, "farpage_faults_total{kind=\"zero\"," + owner + "} " + std::to_string(faults + 1)));
    EXPECT_TRUE(has(text, "farpage_resident_bytes{" + owner + "} 4096"));
    EXPECT_TRUE(has(text, "farpage_reads_total{node=\"n1\"} " + std::to_string(faults)));
    EXPECT_TRUE(has(text, "farpage_coordinator_node_reported_free_slabs{node=\"n1\"} 3"));
  }
  EXPECT_TRUE(has(metrics(), "farpage_coordinator_slabs{state=\"leased\"} 1"));
  EXPECT_TRUE(has(metrics(), "farpage_coordinator_nodes{state=\"alive\"} 1"));
  EXPECT_TRUE(has(metrics(), "farpage_coordinator_leases{state=\"held\"} 1"));
  EXPECT_NE(metrics().find("farpage_coordinator_requests_total{code=\"201\",method=\"POST\","
                           "route=\"/v1/regions\"} 1"),
            std::string::npos)
      << metrics();
  ASSERT_TRUE(client_->delete_region(region->id).has_value());
  EXPECT_EQ(metrics().find("farpage_faults_total"), std::string::npos);
  EXPECT_TRUE(has(metrics(), "farpage_coordinator_slabs{state=\"leased\"} 0"));
}

// The routes that take a body, each with a valid one.
struct BodyRoute {
  const char* method;
  const char* path;
  std::string body;
};

std::vector<BodyRoute> body_routes() {
  return {
      {"POST", "/v1/nodes", encode(test_node("fuzz", 4))},
      {"PUT", "/v1/nodes/honest/heartbeat", encode(NodeHeartbeat{1, 2, {{"reads_total", 1}}})},
      {"POST", "/v1/nodes/honest/rdma/endpoint", encode(test_endpoint())},
      {"POST", "/v1/regions", encode(test_region(1))},
      {"PUT", "/v1/regions/r-0/heartbeat", encode(RegionHeartbeat{{{"faults_total", 5}}})},
      {"POST", "/v1/regions/r-0/slabs", encode(std::vector<SlabIndex>{SlabIndex{0}, SlabIndex{3}})},
      {"POST", "/v1/regions/r-0/slabs/release", encode(std::vector<SlabIndex>{SlabIndex{1}})},
      {"POST", "/v1/regions/r-0/repairs",
       encode(RepairBegin{SlabIndex{0}, {{NodeId{"honest"}, Generation{1}}}, {}})},
      {"POST", "/v1/regions/r-0/repairs/complete",
       encode(RepairComplete{SlabIndex{0}, {NodeId{"honest"}, Generation{1}}})},
  };
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // Never a valid message of any route.
  std::string mutate(const std::string& valid) {
    switch (below(7)) {
      case 0:
        return random_bytes();
      case 1:  // cut short
        return valid.substr(0, 1 + below(valid.size() - 1));
      case 2:  // nested deeply
        return std::string(1 + below(200000), below(2) == 0 ? '[' : '{');
      case 3:  // nested deeply inside a field
        return with_first_value(std::string(5000, '[') + std::string(5000, ']'));
      case 4:  // a number that fits no type
        return with_first_value(below(2) == 0 ? "1" + std::string(1 + below(3000), '0') : "-1e400");
      case 5:  // an unknown field
        return R"({"no_such_field":0,)" + valid.substr(1);
      default:  // a wrong type
        return with_first_value(kWrong[below(std::size(kWrong))]);
    }
  }

 private:
  static constexpr const char* kWrong[] = {"[]", "{}", "true", "-1", "1.5", "\"\\u0000\"", "[[]]"};

  uint64_t below(uint64_t bound) { return random_() % bound; }
  std::string random_bytes() {
    std::string bytes(1 + below(2000), ' ');
    for (char& byte : bytes) byte = static_cast<char>(below(256));
    return bytes;
  }
  // A first key, known or unknown to the message, with the wrong value.
  std::string with_first_value(const std::string& value) {
    static constexpr const char* kKeys[] = {"id", "incarnation", "qpn", "name", "slabs", "other"};
    return std::string("{\"") + kKeys[below(std::size(kKeys))] + "\":" + value + "}";
  }

  std::mt19937_64 random_;
};

TEST_F(ServiceTest, ThousandMalformedBodiesAreRefusedAndHarmNobody) {
  ASSERT_TRUE(client_->join(test_node("honest", 8)).has_value());
  const auto region = client_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  const uint64_t seed = 20240607;
  RecordProperty("seed", std::to_string(seed));
  Mutator mutator(seed);
  const auto routes = body_routes();
  for (size_t i = 0; i < 1000; ++i) {
    const BodyRoute& route = routes[i % routes.size()];
    const std::string body = mutator.mutate(route.body);
    const RawAnswer answer = raw_request(port(), route.method, route.path, body);
    ASSERT_GE(answer.status, 400) << "seed " << seed << " round " << i << " " << route.path << " "
                                  << body.substr(0, 200);
    // The body is decoded before the region is looked up: 404 would mean a valid body.
    ASSERT_NE(answer.status, 404) << "seed " << seed << " round " << i << " "
                                  << body.substr(0, 200);
    ASSERT_LT(answer.status, 500) << "seed " << seed << " round " << i;
    ASSERT_TRUE(answer.is_problem()) << answer.head;
    if (i % 100 == 0) {
      EXPECT_TRUE(client_->heartbeat_region(region->id, {}).has_value());
    }
  }
  EXPECT_EQ(client_->nodes()->size(), 1U);
  EXPECT_EQ(client_->regions()->size(), 1U);
  EXPECT_EQ(client_->region(region->id)->leases.size(), 2U);
  EXPECT_TRUE(client_->lease_slabs(region->id, {SlabIndex{5}}).has_value());
  EXPECT_EQ(*client_->get("/healthz"), R"({"status":"ok"})");
}

TEST_F(ServiceTest, TheValidBodiesThatAreMutatedAreValid) {
  ASSERT_TRUE(client_->join(test_node("honest", 8)).has_value());
  for (const BodyRoute& route : body_routes()) {
    const RawAnswer answer = raw_request(port(), route.method, route.path, route.body);
    // 404: the region r-0 does not exist, but the body was valid.
    EXPECT_TRUE(answer.status < 300 || answer.status == 404) << route.path << answer.body;
  }
}

}  // namespace
}  // namespace farpage::coordinator
