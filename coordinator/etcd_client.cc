#include "coordinator/etcd_client.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "http/url.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

// Of one member.
constexpr Milliseconds kConnect{300};
constexpr Milliseconds kAnswer{800};

// The gateway writes 64-bit numbers as strings, and leaves out those that are 0.
int64_t number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  const auto* text = found->get_ptr<const std::string*>();
  int64_t value = 0;
  if (text != nullptr) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  const auto* text = found == object.end() ? nullptr : found->get_ptr<const std::string*>();
  return text == nullptr ? std::string() : *text;
}

bool flag_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

// The member `key`, an object; an empty one where there is none.
Json object_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : Json::object();
}

Json list_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : Json::array();
}

tl::unexpected<Error> not_understood() {
  return fail(ErrorCode::kIo,
              "etcd sent an answer that is not one of its v3 API: are the URLs of "
              "--store those of etcd's clients?");
}

Result<Json> parse_object(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return not_understood();
  return json;
}

Result<std::vector<EtcdRecord>> records_of(const Json& range) {
  std::vector<EtcdRecord> records;
  for (const Json& entry : list_in(range, "kvs")) {
    auto key = from_base64(text_in(entry, "key"));
    auto value = from_base64(text_in(entry, "value"));
    if (!key || !value) return not_understood();
    records.push_back(EtcdRecord{std::move(*key), std::move(*value),
                                 number_in(entry, "create_revision"),
                                 number_in(entry, "mod_revision"), number_in(entry, "lease")});
  }
  return records;
}

Json json_of(const EtcdCompare& compare) {
  const bool create = compare.of == EtcdCompare::Of::kCreateRevision;
  return {{"target", create ? "CREATE" : "MOD"},
          {"result", "EQUAL"},
          {"key", to_base64(compare.key)},
          {create ? "create_revision" : "mod_revision", std::to_string(compare.revision)}};
}

Json json_of(const EtcdChange& change) {
  if (!change.value) {
    Json removal{{"key", to_base64(change.key)}};
    if (!change.range_end.empty()) removal["range_end"] = to_base64(change.range_end);
    return {{"request_delete_range", std::move(removal)}};
  }
  return {{"request_put",
           {{"key", to_base64(change.key)},
            {"value", to_base64(*change.value)},
            {"lease", std::to_string(change.lease)}}}};
}

// What a status says about a request. The gateway answers gRPC's Unavailable, DeadlineExceeded and
// ResourceExhausted with 503, 504 (408) and 429.
bool is_definite(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 429;
}

Error error_of(const http::Url& member, const http::Answer& answer) {
  const Json json = Json::parse(answer.body, nullptr, false);
  std::string said = json.is_object() ? text_in(json, "error") : "";
  if (said.empty()) said = fmt::format("HTTP status {}", answer.status);
  const ErrorCode code = answer.status == 404         ? ErrorCode::kNotFound
                         : is_definite(answer.status) ? ErrorCode::kInvalid
                                                      : ErrorCode::kUnavailable;
  return Error{code, fmt::format("etcd at {}: {}", http::to_text(member), said), 0};
}

}  // namespace

std::string end_of_prefix(std::string prefix) {
  // Our keys have no byte 255.
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

Result<std::unique_ptr<EtcdClient>> EtcdClient::create(const std::string& urls) {
  FARPAGE_TRY(list, http::parse_urls(urls));
  std::vector<http::Caller> members;
  members.reserve(list.size());
  for (http::Url& url : list) members.emplace_back(std::move(url), "");
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(members)));
}

Result<std::string> EtcdClient::post(const std::string& path, const std::string& body) const {
  const size_t first = latest_.load(std::memory_order_relaxed);
  Error failure;
  for (size_t i = 0; i < members_.size(); ++i) {
    const size_t index = (first + i) % members_.size();
    const http::Caller& member = members_[index];
    auto answer = member.exchange("POST", path, body, {kConnect, kAnswer});
    if (answer && answer->status < 400) {
      latest_.store(index, std::memory_order_relaxed);
      return std::move(answer->body);
    }
    failure = answer ? error_of(member.server(), *answer) : std::move(answer).error();
    if (answer && is_definite(answer->status)) return tl::unexpected(std::move(failure));
  }
  latest_.store((first + 1) % members_.size(), std::memory_order_relaxed);
  return fail(ErrorCode::kUnavailable,
              fmt::format("etcd does not answer, or has no majority: {}", failure.message()));
}

Result<EtcdRange> EtcdClient::range(const std::string& key, const std::string& range_end,
                                    size_t limit, int64_t revision) const {
  Json request{{"key", to_base64(key)},
               {"limit", std::to_string(limit)},
               {"revision", std::to_string(revision)}};
  if (!range_end.empty()) request["range_end"] = to_base64(range_end);
  FARPAGE_TRY(text, post("/v3/kv/range", request.dump()));
  FARPAGE_TRY(answer, parse_object(text));
  FARPAGE_TRY(records, records_of(answer));
  const int64_t now = number_in(object_in(answer, "header"), "revision");
  if (now == 0) return not_understood();
  return EtcdRange{std::move(records), flag_in(answer, "more"), now};
}

Result<EtcdOutcome> EtcdClient::transact(const EtcdTransaction& transaction) const {
  Json compare = Json::array();
  for (const EtcdCompare& each : transaction.compare) compare.push_back(json_of(each));
  Json success = Json::array();
  for (const EtcdChange& each : transaction.changes) success.push_back(json_of(each));
  Json failure = Json::array();
  for (const std::string& key : transaction.or_read)
    failure.push_back({{"request_range", {{"key", to_base64(key)}}}});
  const Json request{{"compare", std::move(compare)},
                     {"success", std::move(success)},
                     {"failure", std::move(failure)}};
  FARPAGE_TRY(text, post("/v3/kv/txn", request.dump()));
  FARPAGE_TRY(answer, parse_object(text));
  EtcdOutcome outcome;
  outcome.done = flag_in(answer, "succeeded");
  outcome.revision = number_in(object_in(answer, "header"), "revision");
  if (outcome.revision == 0) return not_understood();
  for (const Json& response : list_in(answer, "responses")) {
    FARPAGE_TRY(records, records_of(object_in(response, "response_range")));
    for (EtcdRecord& record : records) outcome.read.push_back(std::move(record));
  }
  return outcome;
}

Result<EtcdLease> EtcdClient::grant(Seconds time_to_live) const {
  FARPAGE_TRY(text,
              post("/v3/lease/grant", Json{{"TTL", std::to_string(time_to_live.count())}}.dump()));
  FARPAGE_TRY(answer, parse_object(text));
  const EtcdLease lease{number_in(answer, "ID"), Seconds(number_in(answer, "TTL"))};
  if (lease.id == 0 || lease.time_to_live <= Seconds(0)) return not_understood();
  return lease;
}

Result<Seconds> EtcdClient::keep_alive(int64_t lease) const {
  FARPAGE_TRY(text, post("/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}}.dump()));
  FARPAGE_TRY(answer, parse_object(text));
  if (answer.contains("error"))
    return fail(ErrorCode::kUnavailable, "etcd cannot renew a lease at the moment");
  const Json result = object_in(answer, "result");
  if (number_in(result, "ID") != lease) return not_understood();
  const Seconds left(number_in(result, "TTL"));
  if (left <= Seconds(0)) return fail(ErrorCode::kNotFound, "the lease in etcd has ended");
  return left;
}

Status EtcdClient::revoke(int64_t lease) const {
  FARPAGE_TRY_VOID(post("/v3/lease/revoke", Json{{"ID", std::to_string(lease)}}.dump()));
  return {};
}

}  // namespace farpage::coordinator
