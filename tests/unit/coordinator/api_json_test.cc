#include "coordinator/api_json.h"
#include "http/json_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "http/problem.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

// A node with one address of each kind.
NodeJoin full_node() {
  NodeJoin node = test_node("n1", 4, ~uint64_t{0});
  node.transports.push_back({rdma::TransportKind::kVerbs, "rxe0/1 \"any text\" \xc3\xa4"});
  node.transports.push_back({rdma::TransportKind::kShm, "boot:/run/farpage/n1.sock"});
  node.transports.push_back({rdma::TransportKind::kLoop, std::string(rdma::kMaxAddressBytes, 'x')});
  return node;
}

TEST(ApiJson, NodeGoesBothWays) {
  const NodeJoin node = full_node();
  const auto decoded = decode_node_join(encode(node));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(decoded->id, node.id);
  EXPECT_EQ(decoded->incarnation, node.incarnation);
  EXPECT_EQ(decoded->agent_url, node.agent_url);
  EXPECT_EQ(decoded->capacity_bytes, node.capacity_bytes);
  EXPECT_EQ(decoded->transports, node.transports);
  NodeInfo info;
  info.join = node;
  info.state = NodeState::kLost;
  info.total_slabs = 4;
  info.free_slabs = 1;
  info.last_heartbeat_age = Milliseconds(17);
  info.counters = {{"farpage_reads_total{kind=\"remote\"}", ~uint64_t{0}}};
  const auto list = decode_node_list(encode(std::vector<NodeInfo>{info, info}));
  ASSERT_TRUE(list.has_value()) << list.error().message();
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ((*list)[1].state, NodeState::kLost);
  EXPECT_EQ((*list)[1].free_slabs, 1U);
  EXPECT_EQ((*list)[1].last_heartbeat_age, Milliseconds(17));
  EXPECT_EQ((*list)[1].counters, info.counters);
  EXPECT_FALSE((*list)[1].lend_bytes);
  EXPECT_FALSE((*list)[1].join.spill);
  EXPECT_EQ(encode(node).find("spill"), std::string::npos) << "a former coordinator refuses it";
  info.join.withdrawn = {1, 5};
  info.join.labels = {{"zone", "a"}, {"rack", "7"}};
  info.join.identity = std::string(kIdentityDigits, 'f');
  info.join.spill = true;
  info.lend_bytes = 6 * kMinSlabBytes;
  info.lend_refused = "no memory";
  const auto changing = decode_node_info(encode(info));
  ASSERT_TRUE(changing.has_value()) << changing.error().message();
  EXPECT_EQ(changing->join.withdrawn, info.join.withdrawn);
  EXPECT_EQ(changing->lend_bytes, info.lend_bytes);
  EXPECT_EQ(changing->lend_refused, "no memory");
  EXPECT_EQ(changing->join.labels, info.join.labels);
  EXPECT_EQ(changing->join.identity, info.join.identity);
  EXPECT_TRUE(changing->join.spill);
  EXPECT_EQ(decode_node_lend(encode(NodeLend{7}))->bytes, 7U);
  EXPECT_FALSE(decode_node_lend(encode(NodeLend{0})).has_value());
}

TEST(ApiJson, RegionAndLeasesGoBothWays) {
  RegionInfo region;
  region.id = RegionId{"r-1"};
  region.name = "test";
  region.replicas = 2;
  region.slab_bytes = kMinSlabBytes;
  Lease lease;
  lease.slab = SlabIndex{65535};
  lease.replica = 1;
  lease.node = NodeId{"n1"};
  lease.node_slab = 9;
  lease.address = RemoteAddress{~uint64_t{0}};
  lease.bytes = kMinSlabBytes;
  lease.rkeys = {{rdma::TransportKind::kShm, RemoteKey{~uint32_t{0}, {~uint64_t{0}, 1}}}};
  lease.generation = Generation{5};
  lease.lost = true;
  region.leases = {lease};
  const auto shown = decode_region_info(encode(region, Secrets::kShow));
  ASSERT_TRUE(shown.has_value()) << shown.error().message();
  EXPECT_EQ(shown->leases.at(0).rkeys, lease.rkeys);
  EXPECT_EQ(shown->leases.at(0).address, lease.address);
  EXPECT_EQ(shown->leases.at(0).slab, lease.slab);
  EXPECT_TRUE(shown->leases.at(0).lost);
  EXPECT_FALSE(shown->leases.at(0).stale || shown->leases.at(0).filling);
  EXPECT_TRUE(decode_region_info(encode(region, Secrets::kHide))->leases.at(0).rkeys.empty());
  EXPECT_EQ(decode_lease_list(encode(region.leases))->at(0).rkeys, lease.rkeys);
  const auto create = decode_region_create(encode(test_region(3, 2)));
  ASSERT_TRUE(create.has_value());
  EXPECT_EQ(create->bytes, 3 * kMinSlabBytes);
  EXPECT_EQ(create->replicas, 2U);
}

TEST(ApiJson, RepairsGoBothWays) {
  const RepairBegin begin{SlabIndex{7}, {{NodeId{"n1"}, Generation{3}}}, {NodeId{"n2"}}};
  const auto asked = decode_repair_begin(encode(begin));
  ASSERT_TRUE(asked.has_value()) << asked.error().message();
  EXPECT_EQ(asked->slab, begin.slab);
  EXPECT_EQ(asked->live, begin.live);
  EXPECT_EQ(asked->avoid, begin.avoid);
  RepairBegun begun;
  begun.filling.slab = SlabIndex{7};
  begun.filling.node = NodeId{"n3"};
  begun.filling.bytes = kMinSlabBytes;
  begun.filling.generation = Generation{4};
  begun.filling.filling = true;
  begun.filling.rkeys = {{rdma::TransportKind::kShm, RemoteKey{~uint32_t{0}, {1, 2}}}};
  begun.replaces = {NodeId{"n1"}, Generation{9}};
  const auto answered = decode_repair_begun(encode(begun));
  ASSERT_TRUE(answered.has_value()) << answered.error().message();
  EXPECT_TRUE(answered->filling.filling);
  EXPECT_EQ(name_of(answered->filling), name_of(begun.filling));
  EXPECT_EQ(answered->filling.rkeys, begun.filling.rkeys);
  EXPECT_EQ(answered->replaces, begun.replaces);
  const auto complete =
      decode_repair_complete(encode(RepairComplete{SlabIndex{7}, begun.replaces}));
  ASSERT_TRUE(complete.has_value()) << complete.error().message();
  EXPECT_EQ(complete->slab, SlabIndex{7});
  EXPECT_EQ(complete->filled, begun.replaces);
}

TEST(ApiJson, SmallMessagesGoBothWays) {
  EXPECT_EQ(*decode_queue_pair_endpoint(encode(test_endpoint())), test_endpoint());
  EXPECT_EQ(*decode_queue_pair_reply(encode(test_endpoint())), test_endpoint());
  const auto heartbeat = decode_node_heartbeat(encode(NodeHeartbeat{7, 3, {{"a_total", 1}}}));
  EXPECT_EQ(heartbeat->incarnation, 7U);
  EXPECT_EQ(heartbeat->counters.at("a_total"), 1U);
  EXPECT_EQ(decode_region_heartbeat(encode(RegionHeartbeat{{{"b", 2}}}))->counters.at("b"), 2U);
  EXPECT_EQ(decode_region_heard(encode(RegionHeard{12}))->last_event, 12U);
  const std::vector<SlabIndex> slabs{SlabIndex{0}, SlabIndex{3}};
  EXPECT_EQ(*decode_slab_list(encode(slabs)), slabs);
  const std::vector<NodeSlabRequest> wanted{{9, {RegionId{"r"}, SlabIndex{4}, 2, 77}}};
  const auto asked = decode_slab_lease_requests(encode(wanted));
  ASSERT_EQ(asked->size(), 1U);
  EXPECT_EQ(asked->front().node_slab, 9U);
  EXPECT_EQ(asked->front().lease.region, RegionId{"r"});
  EXPECT_EQ(asked->front().lease.slab, SlabIndex{4});
  EXPECT_EQ(asked->front().lease.replica, 2U);
  EXPECT_EQ(asked->front().lease.session_group, 77U);
  EXPECT_EQ(decode_slab_revoke_request(encode(SlabRevokeRequest{Generation{6}}))->generation.value,
            6U);
  SlabLeaseReply reply;
  reply.address = RemoteAddress{4096};
  reply.bytes = kMinSlabBytes;
  reply.rkeys = {{rdma::TransportKind::kVerbs, RemoteKey{0}}};
  reply.generation = Generation{1};
  const auto replies =
      decode_slab_lease_replies(encode({reply, fail(ErrorCode::kExhausted, "memlock")}), 2);
  ASSERT_TRUE(replies.has_value()) << replies.error().message();
  const Result<SlabLeaseReply>& granted = replies->front();
  ASSERT_TRUE(granted.has_value()) << granted.error().message();
  EXPECT_EQ(granted->rkeys, reply.rkeys);
  EXPECT_EQ(granted->generation, reply.generation);
  EXPECT_EQ(replies->back().error().code, ErrorCode::kExhausted);
  EXPECT_EQ(replies->back().error().context, "memlock");
}

TEST(ApiJson, EventsGoBothWaysAndUnknownKindsAreSkipped) {
  EventBatch batch;
  batch.events.push_back(
      Event{12, EventKind::kLeaseLost, NodeId{"n1"}, RegionId{"r"}, SlabIndex{3}});
  batch.next_since = 12;
  batch.missed = true;
  const auto decoded = decode_event_batch(encode(batch));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(decoded->events.at(0).kind, EventKind::kLeaseLost);
  EXPECT_EQ(decoded->events.at(0).slab, SlabIndex{3});
  EXPECT_TRUE(decoded->missed);
  const auto newer = decode_event_batch(
      R"({"events":[{"sequence":13,"kind":"moon_rose"}],"next_since":13,"missed":false})");
  ASSERT_TRUE(newer.has_value());
  EXPECT_TRUE(newer->events.empty());
  EXPECT_EQ(newer->next_since, 13U);
}

TEST(ApiJson, RepliesMayHaveFieldsOfANewerVersion) {
  const auto replies = decode_slab_lease_replies(
      R"({"slabs":[{"address":1,"bytes":2097152,"rkeys":{},"generation":1,"colour":"red"}]})", 1);
  ASSERT_TRUE(replies.has_value()) << replies.error().message();
  EXPECT_TRUE(replies->front().has_value());
}

struct BadBody {
  const char* body;
  const char* field;
};

template <typename Decode>
void expect_refused(Decode decode, std::initializer_list<BadBody> cases) {
  for (const BadBody& bad : cases) {
    const auto decoded = decode(bad.body);
    ASSERT_FALSE(decoded.has_value()) << bad.body;
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalid) << bad.body;
    EXPECT_EQ(http::field_of(decoded.error()), bad.field) << bad.body << decoded.error().message();
    EXPECT_EQ(http::status_of(decoded.error()), *bad.field == 0 ? 400 : 422) << bad.body;
  }
}

// A valid NodeJoin in which `by` replaces `piece`.
std::string node_with(const std::string& piece, const std::string& by) {
  std::string body =
      R"({"id":"n1","incarnation":1,"agent_url":"http://h:1","capacity_bytes":4194304,)"
      R"("slab_bytes":2097152,"transports":[{"kind":"verbs","address":"d/1"}]})";
  const size_t at = body.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return body.replace(at, piece.size(), by);
}

TEST(ApiJson, WrongFieldOfANodeIsNamed) {
  ASSERT_TRUE(decode_node_join(node_with("n1", "n1")).has_value());
  struct Case {
    const char* piece;
    const char* by;
    const char* field;
  };
  for (const Case& c : {
           Case{"\"n1\"", "\"a/b\"", "id"},
           {"\"n1\"", "\"..\"", "id"},
           {"\"n1\"", "\"\"", "id"},
           {"\"n1\"", "5", "id"},
           {"\"id\":\"n1\",", "", "id"},
           {"\"id\"", "\"colour\":1,\"id\"", "colour"},
           {"\"incarnation\":1", "\"incarnation\":0", "incarnation"},
           {"\"incarnation\":1", "\"incarnation\":-1", "incarnation"},
           {"\"incarnation\":1", "\"incarnation\":1.0", "incarnation"},
           {"\"incarnation\":1", "\"incarnation\":1e3", "incarnation"},
           {"\"incarnation\":1", "\"incarnation\":18446744073709551616", "incarnation"},
           {"http://h:1", "ftp://h:1", "agent_url"},
           {"http://h:1", "http://h:1/\\u0000", "agent_url"},
           {"4194304", "2097151", "capacity_bytes"},
           {"4194304", "1125899906842625", "capacity_bytes"},
           {"\"slab_bytes\":2097152", "\"slab_bytes\":3000000", "slab_bytes"},
           {"\"slab_bytes\":2097152", "\"slab_bytes\":1048576", "slab_bytes"},
           {"\"verbs\"", "\"smoke\"", "transports[0].kind"},
           {"\"d/1\"", "\"\"", "transports[0].address"},
           {"\"d/1\"", "1", "transports[0].address"},
           {"\"d/1\"", "\"d\\u0000\"", "transports[0].address"},
           {",\"address\":\"d/1\"", "", "transports[0].address"},
           {"\"d/1\"", "\"d/1\",\"host\":\"h\"", "transports[0].host"},
           {"[{", "[5,{", "transports[0]"},
           {"\"id\"", "\"withdrawn\":[0,3],\"id\"", ""},
           {"\"id\"", "\"withdrawn\":[0,4],\"id\"", "withdrawn"},
           {"\"id\"", "\"withdrawn\":[1,1],\"id\"", "withdrawn"},
           {"\"id\"", "\"labels\":{\"zone\":\"\"},\"id\"", "labels"},
           {"\"id\"", "\"labels\":{\"a b\":\"c\"},\"id\"", "labels"},
           {"\"id\"", "\"labels\":{\"zone\":1},\"id\"", "labels.'zone'"},
           {"\"id\"", "\"spill\":true,\"id\"", ""},
           {"\"id\"", "\"spill\":1,\"id\"", "spill"},
           {"\"id\"", "\"identity\":\"\",\"id\"", "identity"},
           {"\"id\"", "\"identity\":\"0123456789ABCDEF0123456789ABCDEF\",\"id\"", "identity"},
       }) {
    if (*c.field == 0) {
      EXPECT_TRUE(decode_node_join(node_with(c.piece, c.by)).has_value()) << c.by;
      continue;
    }
    const std::string body = node_with(c.piece, c.by);
    expect_refused(decode_node_join, {{body.c_str(), c.field}});
  }
  const std::string long_text(rdma::kMaxAddressBytes + 1, 'x');
  expect_refused(decode_node_join,
                 {{node_with("d/1", long_text).c_str(), "transports[0].address"}});
  expect_refused(decode_node_join,
                 {{node_with("{\"kind\"", "{},{\"kind\"").c_str(), "transports[0].kind"}});
}

TEST(ApiJson, WrongBodyIsRefused) {
  expect_refused(decode_region_heartbeat, {{"", ""},
                                           {"{", ""},
                                           {"[]", ""},
                                           {"null", ""},
                                           {"{}x", ""},
                                           {R"({"counters":{},"counters":{}})", ""},
                                           {R"({"counters":{"a":1e999}})", ""},
                                           {"{\"counters\":{\"\xff\":1}}", ""},
                                           {R"({"counters":[]})", "counters"},
                                           {R"({"counters":{"Bad":1}})", "counters"},
                                           {R"({"counters":{"a":1,"farpage_a":1}})", "counters"},
                                           {R"({"counters":{"a":-1}})", "counters.'a'"}});
  std::string deep(100000, '[');
  EXPECT_NE(decode_region_heartbeat(deep).error().context.find("nested deeper"), std::string::npos);
}

TEST(ApiJson, WrongFieldsOfSmallMessagesAreNamed) {
  expect_refused(decode_region_create, {{R"({})", "name"},
                                        {R"({"name":"a b"})", "name"},
                                        {R"({"name":"a","replicas":0})", "replicas"},
                                        {R"({"name":"a","replicas":4})", "replicas"},
                                        {R"({"name":"a","bytes":-5})", "bytes"},
                                        {R"({"name":"a","bytes":4398046511105})", "bytes"}});
  expect_refused(decode_slab_list, {{R"({"slabs":[]})", "slabs"},
                                    {R"({"slabs":[1,1]})", "slabs"},
                                    {R"({"slabs":[65536]})", "slabs[0]"},
                                    {R"({"slabs":["0"]})", "slabs[0]"},
                                    {R"({"slabs":0})", "slabs"}});
  expect_refused(
      decode_queue_pair_endpoint,
      {{R"({"qpn":16777216,"psn":0,"lid":0,"gid":"::1","mtu_bytes":1024})", "qpn"},
       {R"({"qpn":1,"psn":16777216,"lid":0,"gid":"::1","mtu_bytes":1024})", "psn"},
       {R"({"qpn":1,"psn":0,"lid":0,"mtu_bytes":1024})", "gid"},
       {R"({"qpn":1,"psn":0,"lid":0,"gid":"x","mtu_bytes":1024})", "gid"},
       {R"({"qpn":1,"psn":0,"lid":0,"gid":"::1","mtu_bytes":1024,"is_global":1})", "is_global"},
       {R"({"qpn":1,"psn":0,"lid":0,"gid":"::1","mtu_bytes":1024,"session":-1})", "session"},
       {R"({"qpn":1,"psn":0,"lid":0,"gid":"::1","mtu_bytes":1024,"session":1.5})", "session"},
       {R"({"qpn":1,"psn":0,"lid":0,"gid":"::1","mtu_bytes":1024,"session":18446744073709551616})",
        "session"}});
  expect_refused(decode_slab_revoke_request, {{R"({"generation":0})", "generation"}});
}

TEST(ApiJson, SessionOfAQueuePairKeepsAllItsBitsAndMayBeLeftOut) {
  rdma::QueuePairEndpoint endpoint;
  endpoint.qpn = 1;
  endpoint.gid = "::1";
  for (const uint64_t session : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    endpoint.session = session;
    const auto decoded = decode_queue_pair_endpoint(encode(endpoint));
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
    EXPECT_EQ(*decoded, endpoint);
  }
}

TEST(ApiJson, CountersAreBounded) {
  NodeHeartbeat heartbeat{1, 0, {}};
  for (size_t i = 0; i < kMaxCounters; ++i) heartbeat.counters["a" + std::to_string(i)] = i;
  EXPECT_TRUE(decode_node_heartbeat(encode(heartbeat)).has_value());
  heartbeat.counters["one_more"] = 1;
  EXPECT_FALSE(decode_node_heartbeat(encode(heartbeat)).has_value());
}

TEST(Problem, KeepsCodeTextAndField) {
  const Error error{ErrorCode::kInvalid, "field 'a[0].b': is missing", 0};
  const std::string body = http::encode_problem(422, error);
  EXPECT_NE(body.find(R"("field":"a[0].b")"), std::string::npos);
  EXPECT_NE(body.find(R"("status":422)"), std::string::npos);
  EXPECT_EQ(http::error_of_answer(422, body).code, ErrorCode::kInvalid);
  EXPECT_EQ(http::error_of_answer(422, body).context, error.context);
  EXPECT_EQ(http::error_of_answer(404, "<html>").code, ErrorCode::kNotFound);
  EXPECT_EQ(http::error_of_answer(503, "").code, ErrorCode::kUnavailable);
}

TEST(ApiJson, WrongFieldOfARepairIsNamed) {
  expect_refused(
      decode_repair_begin,
      {{R"({"slab":65536,"live":[{"node":"n","generation":1}],"avoid":[]})", "slab"},
       {R"({"slab":0,"live":[],"avoid":[]})", "live"},
       {R"({"slab":0,"live":[{"node":"n","generation":0}],"avoid":[]})", "live[0].generation"},
       {R"({"slab":0,"live":[{"node":"n","generation":1}],"avoid":[{"node":"a b"}]})",
        "avoid[0].node"},
       {R"({"slab":0,"live":[{"node":"n","generation":1}]})", "avoid"}});
  expect_refused(decode_repair_complete,
                 {{R"({"slab":0,"node":"n"})", "generation"},
                  {R"({"slab":0,"node":"n","generation":1,"live":1})", "live"}});
  expect_refused(decode_repair_begun, {{R"({"filling":3})", "filling"}});
}

}  // namespace
}  // namespace farpage::coordinator
