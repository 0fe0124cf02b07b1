// openapi.json describes the routes that are served, all of them and no others.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/routes.h"
#include "tests/unit/coordinator/test_service.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;
using Operations = std::set<std::pair<std::string, std::string>>;

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c); });
  return text;
}

class OpenApiTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    document_ = Json::parse(raw_request(port(), "GET", "/openapi.json").body, nullptr, false);
    ASSERT_TRUE(document_.is_object());
  }
  Json document_;
};

// Every "$ref" in the document resolves.
void expect_references(const Json& root, const Json& part) {
  if (part.is_array() || part.is_object()) {
    for (const Json& child : part) expect_references(root, child);
  }
  if (part.is_object() && part.contains("$ref")) {
    const auto reference = part["$ref"].get<std::string>();
    ASSERT_EQ(reference.rfind("#/", 0), 0U) << reference;
    EXPECT_TRUE(root.contains(Json::json_pointer(reference.substr(1)))) << reference;
  }
}

TEST_F(OpenApiTest, DescribesExactlyTheServedRoutes) {
  EXPECT_EQ(document_["openapi"], "3.0.3");
  Operations described;
  for (const auto& [path, methods] : document_["paths"].items())
    for (const auto& [method, operation] : methods.items()) described.emplace(upper(method), path);
  Operations served;
  auto cluster = Cluster::create({}, make_memory_store(), agents_.client(), clock_);
  Metrics metrics;
  Seat seat(1);
  seat.take(std::move(*cluster), nullptr, "");
  RouteContext context{seat, metrics, clock_};
  for (const http::Route& route : all_routes(context)) served.emplace(route.method, route.pattern);
  EXPECT_EQ(described, served);
}

TEST_F(OpenApiTest, DescribedQueryBodyAndAccessAreTheServedOnes) {
  auto cluster = Cluster::create({}, make_memory_store(), agents_.client(), clock_);
  Metrics metrics;
  Seat seat(1);
  seat.take(std::move(*cluster), nullptr, "");
  RouteContext context{seat, metrics, clock_};
  for (const http::Route& route : all_routes(context)) {
    std::string method = route.method;
    std::transform(method.begin(), method.end(), method.begin(),
                   [](char c) { return static_cast<char>(c + 32); });
    const Json& operation = document_["paths"][route.pattern][method];
    std::vector<std::string> query;
    for (const Json& parameter : operation.value("parameters", Json::array()))
      if (parameter["in"] == "query") query.push_back(parameter["name"]);
    EXPECT_EQ(query, route.query) << route.pattern;
    EXPECT_EQ(operation.contains("requestBody"), route.body == http::Body::kJson) << route.pattern;
    EXPECT_EQ(operation.contains("security"), route.access == http::Access::kOpen) << route.pattern;
  }
}

TEST_F(OpenApiTest, EveryDescribedRouteAnswersAsDescribed) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  for (const auto& [pattern, methods] : document_["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      std::string path = pattern;
      if (const size_t id = path.find("{id}"); id != std::string::npos) path.replace(id, 4, "n1");
      const RawAnswer answer = raw_request(port(), upper(method), path);
      EXPECT_NE(answer.status, 405) << method << path;
      // The node or region may not exist, but the path does.
      EXPECT_EQ(answer.body.find("no such path"), std::string::npos) << method << path;
      EXPECT_TRUE(operation["responses"].contains(std::to_string(answer.status)))
          << method << " " << path << " gave " << answer.status;
    }
  }
}

TEST_F(OpenApiTest, ReferencesLeadSomewhere) {
  expect_references(document_, document_);
}

}  // namespace
}  // namespace farpage::coordinator
