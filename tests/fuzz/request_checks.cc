// What is checked of a request before its body is read. Lines: method, target, then headers, each
// as its first letter and its value. What is accepted has a route, and is within the limits.
#include <algorithm>
#include <string>
#include <string_view>

#include "http/request_checks.h"
#include "tests/fuzz/fuzz_target.h"

using namespace farpage::http;  // NOLINT(google-build-using-namespace): the whole subject

namespace {

const RouteTable& table() {
  static const RouteTable kTable({{"GET", "/v1/things", {"since", "timeout"}, nullptr},
                                  {"POST", "/v1/things/{id}/parts", {}, nullptr, Body::kJson},
                                  {"GET", "/open", {}, nullptr, Body::kNone, Access::kOpen}});
  return kTable;
}

std::string_view take_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  return line;
}

RequestHead head_of(std::string_view rest) {
  RequestHead head;
  head.method = take_line(rest);
  set_target(head, take_line(rest));
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    if (line.empty()) continue;
    const std::string value(line.substr(1));
    switch (line.front()) {
      case 'l':
        head.content_lengths.push_back(value);
        break;
      case 't':
        head.content_type = value;
        break;
      case 'a':
        head.authorization = value;
        break;
      case 'c':
        head.has_transfer_encoding = true;
        break;
      case 'e':
        head.has_content_encoding = true;
        break;
      case 'r':
        head.has_range = true;
        break;
      default:
        break;
    }
  }
  return head;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string token = "secret";
  const RequestHead head = head_of({reinterpret_cast<const char*>(data), size});
  const CheckedRequest checked = check_request(head, table(), token);
  if (checked.refusal) {
    FUZZ_EXPECT(checked.refusal->status >= 400 && checked.refusal->status < 600);
    return 0;
  }
  const Route* const route = checked.match.route;
  FUZZ_EXPECT(route != nullptr);
  FUZZ_EXPECT(head.path.size() <= kMaxPathBytes && head.path.front() == '/');
  FUZZ_EXPECT(!head.has_transfer_encoding && !head.has_content_encoding && !head.has_range);
  const int64_t length = content_length(head).value_or(0);
  FUZZ_EXPECT(length >= 0 && length <= static_cast<int64_t>(kMaxBodyBytes));
  FUZZ_EXPECT(length == 0 || route->body == Body::kJson);
  FUZZ_EXPECT(route->access == Access::kOpen || head.authorization.ends_with(token));
  for (const auto& [key, value] : head.query)
    FUZZ_EXPECT(std::find(route->query.begin(), route->query.end(), key) != route->query.end());
  return 0;
}
