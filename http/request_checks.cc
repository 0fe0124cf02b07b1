#include "http/request_checks.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <charconv>

#include "http/problem.h"

namespace farpage::http {
namespace {

// Constant time for all wrong tokens of the same length.
bool equal_secret(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ expected[i % expected.size()]);
  return difference == 0;
}

bool has_token(const RequestHead& head, const std::string& token) {
  if (token.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";  // in any case (RFC 9110, 11.1)
  const std::string& header = head.authorization;
  return ::strncasecmp(header.c_str(), kScheme.data(), kScheme.size()) == 0 &&
         equal_secret(std::string_view(header).substr(kScheme.size()), token);
}

Reply refuse(int status, ErrorCode code, std::string text) {
  return problem_reply(status, Error{code, std::move(text), 0});
}

std::optional<Reply> refuse_framing(const RequestHead& head) {
  if (head.has_transfer_encoding) return refuse_transfer_encoding();
  if (head.has_content_encoding)
    return refuse(415, ErrorCode::kUnsupported,
                  "Content-Encoding is not supported: send plain JSON");
  if (head.has_range)
    return refuse(416, ErrorCode::kUnsupported,
                  "Range is not supported: request the whole resource");
  const std::optional<int64_t> length = content_length(head);
  if (length && *length < 0) return refuse_content_length();
  if (length && *length > static_cast<int64_t>(kMaxBodyBytes))
    return refuse(
        413, ErrorCode::kInvalid,
        fmt::format("the body has {} bytes, at most {} are allowed", *length, kMaxBodyBytes));
  const std::string& type = head.content_type;
  if (length && *length > 0 && type.substr(0, type.find(';')) != "application/json")
    return refuse(415, ErrorCode::kInvalid, "the body must have Content-Type: application/json");
  if (head.path.size() > kMaxPathBytes)
    return refuse(414, ErrorCode::kInvalid, "the path is too long");
  return std::nullopt;
}

std::optional<Reply> refuse_body(const RequestHead& head, const Route& route) {
  if (route.body == Body::kJson || content_length(head).value_or(0) == 0) return std::nullopt;
  return refuse(400, ErrorCode::kInvalid, "this route takes no body");
}

std::optional<Reply> refuse_query(const RequestHead& head, const Route& route) {
  for (const auto& [key, value] : head.query) {
    if (std::find(route.query.begin(), route.query.end(), key) == route.query.end())
      return refuse(400, ErrorCode::kInvalid,
                    route.query.empty()
                        ? "this route takes no query parameters"
                        : fmt::format("an unknown query parameter: this route takes {}",
                                      fmt::join(route.query, ", ")));
    const auto is_same = [&name = key](const auto& other) { return other.first == name; };
    if (std::count_if(head.query.begin(), head.query.end(), is_same) > 1)
      return refuse(400, ErrorCode::kInvalid, "the query parameter " + key + " is given twice");
  }
  return std::nullopt;
}

std::optional<Reply> refuse_route(const RequestHead& head, const RouteMatch& match,
                                  const RouteTable& table) {
  if (match.route != nullptr) {
    if (auto refused = refuse_body(head, *match.route)) return refused;
    return refuse_query(head, *match.route);
  }
  if (match.other_methods.empty())
    return refuse(404, ErrorCode::kNotFound,
                  table.match("GET", "/openapi.json").route != nullptr
                      ? "no such path: /openapi.json lists all"
                      : "no such path");
  Reply reply = refuse(405, ErrorCode::kInvalid,
                       fmt::format("this path supports {}", fmt::join(match.other_methods, ", ")));
  reply.headers["Allow"] = fmt::format("{}", fmt::join(match.other_methods, ", "));
  return reply;
}

int value_of_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

std::string decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? value_of_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? value_of_digit(text[i + 2]) : -1;
    if (low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

void set_target(RequestHead& head, std::string_view target) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  head.path = decode(target.substr(0, mark), false);
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    std::string key = decode(pair.substr(0, equals), true);
    if (key.empty()) continue;
    head.query.emplace_back(std::move(key), equals == std::string_view::npos
                                                ? ""
                                                : decode(pair.substr(equals + 1), true));
  }
}

std::optional<int64_t> content_length(const RequestHead& head) {
  if (head.content_lengths.empty()) return std::nullopt;
  const std::string& text = head.content_lengths.front();
  int64_t length = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool sound = head.content_lengths.size() == 1 && error == std::errc() &&
                     end == text.data() + text.size() && length >= 0;
  return sound ? length : -1;
}

CheckedRequest check_request(const RequestHead& head, const RouteTable& table,
                             const std::string& token) {
  CheckedRequest checked;
  if ((checked.refusal = refuse_framing(head))) return checked;
  checked.match = table.match(head.is_head() ? "GET" : head.method, head.path);
  const Route* const route = checked.match.route;
  if ((route == nullptr || route->access != Access::kOpen) && !has_token(head, token)) {
    checked.refusal = refuse(401, ErrorCode::kDenied,
                             "the bearer token is missing or wrong: send Authorization: Bearer "
                             "with the cluster's token");
    checked.refusal->headers["WWW-Authenticate"] = "Bearer";
    return checked;
  }
  checked.refusal = refuse_route(head, checked.match, table);
  return checked;
}

Reply malformed_request() {
  return refuse(400, ErrorCode::kInvalid, "the request is malformed");
}

Reply refuse_transfer_encoding() {
  return refuse(501, ErrorCode::kUnsupported,
                "Transfer-Encoding is not supported: send the body with Content-Length");
}

Reply refuse_content_length() {
  return refuse(400, ErrorCode::kInvalid, "Content-Length must be one non-negative integer");
}

}  // namespace farpage::http
