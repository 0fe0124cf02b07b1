#include "coordinator/counter_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace farpage::coordinator {
namespace {

constexpr std::string_view kOwnPrefix = "farpage_coordinator_";

bool is_lower_name(std::string_view text) {
  if (text.empty() || text[0] < 'a' || text[0] > 'z') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool is_label_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == '+';
  });
}

tl::unexpected<Error> bad(const char* why) {
  return fail(ErrorCode::kInvalid,
              fmt::format("{}; write it as faults_total or faults_total{{kind=\"remote\"}}", why));
}

using Label = std::pair<std::string_view, std::string_view>;

// Consumes key="value" at the front of `rest`.
Result<Label> take_label(std::string_view& rest) {
  const size_t equals = rest.find("=\"");
  if (equals == std::string_view::npos) return bad("a label is not key=\"value\"");
  const size_t end = rest.find('"', equals + 2);
  if (end == std::string_view::npos) return bad("a label's value is not closed");
  const Label label(rest.substr(0, equals), rest.substr(equals + 2, end - equals - 2));
  if (!is_lower_name(label.first)) return bad("a label's key is not [a-z][a-z0-9_]*");
  if (!is_label_value(label.second)) return bad("a label's value is not [A-Za-z0-9._+-]*");
  if (label.first == "node" || label.first == "region" || label.first == "name")
    return bad("the labels node, region and name are the coordinator's");
  rest.remove_prefix(end + 1);
  return label;
}

// The parts of a name, in its text.
struct Parts {
  std::string_view name;
  std::array<Label, kMaxCounterLabels> labels;
  size_t label_count = 0;
};

Result<Parts> split(std::string_view text) {
  Parts parts;
  const size_t brace = text.find('{');
  parts.name = text.substr(0, brace);
  if (!is_lower_name(parts.name)) return bad("the name is not [a-z][a-z0-9_]*");
  if (parts.name.starts_with(kOwnPrefix) ||
      parts.name.starts_with(kOwnPrefix.substr(kCounterPrefix.size())))
    return bad("names with farpage_coordinator_ are the coordinator's");
  if (brace == std::string_view::npos) return parts;
  std::string_view rest = text.substr(brace + 1);
  while (true) {
    FARPAGE_TRY(label, take_label(rest));
    for (size_t i = 0; i < parts.label_count; ++i)
      if (parts.labels[i].first == label.first) return bad("a label is given twice");
    if (parts.label_count == kMaxCounterLabels) return bad("there are more than 4 labels");
    parts.labels[parts.label_count++] = label;
    if (rest == "}") return parts;
    if (rest.empty() || rest[0] != ',') return bad("the labels do not end with }");
    rest.remove_prefix(1);
  }
}

// A label le="SECONDS", with a number.
bool has_edge(const CounterName& name) {
  for (const auto& [key, text] : name.labels) {
    if (key != "le") continue;
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    return error == std::errc() && end == text.data() + text.size();
  }
  return false;
}

}  // namespace

HistogramPart take_histogram_part(CounterName& name) {
  constexpr std::string_view kUnit = "_seconds";
  constexpr std::pair<std::string_view, HistogramPart> kParts[] = {
      {"_bucket", HistogramPart::kBucket},
      {"_count", HistogramPart::kCount},
      {"_sum_ns", HistogramPart::kSum}};
  const std::string_view family = name.family;
  for (const auto& [suffix, part] : kParts) {
    if (!family.ends_with(suffix)) continue;
    const size_t base = family.size() - suffix.size();
    if (!family.substr(0, base).ends_with(kUnit)) continue;
    if (part == HistogramPart::kBucket && !has_edge(name)) continue;
    name.family.resize(base);
    return part;
  }
  return HistogramPart::kNone;
}

Status check_counter_name(std::string_view text) {
  FARPAGE_TRY_VOID(split(text));
  return {};
}

Result<CounterName> parse_counter_name(std::string_view text) {
  FARPAGE_TRY(parts, split(text));
  CounterName counter;
  if (!parts.name.starts_with(kCounterPrefix)) counter.family = kCounterPrefix;
  counter.family += parts.name;
  for (size_t i = 0; i < parts.label_count; ++i) counter.labels.emplace_back(parts.labels[i]);
  return counter;
}

}  // namespace farpage::coordinator
