// The names of counters as heartbeats carry them: farpage_faults_total{kind="remote"}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace farpage::coordinator {

inline constexpr std::string_view kCounterPrefix = "farpage_";

struct CounterName {
  std::string family;  // always with the prefix farpage_
  std::vector<std::pair<std::string, std::string>> labels;
  bool operator==(const CounterName&) const = default;
};

// name: [a-z][a-z0-9_]*, with or without the prefix farpage_; then optional {key="value",...} with
// keys like names and values of [A-Za-z0-9._+-], at most kMaxCounterLabels of them.
// kInvalid: anything else; the prefix farpage_coordinator_ (the coordinator's own); the labels
// node, region and name (the coordinator adds them).
Result<CounterName> parse_counter_name(std::string_view text);
Status check_counter_name(std::string_view text);  // the same, without the result

// A histogram is pushed as NAME_seconds_bucket{le="SECONDS"} (cumulative), NAME_seconds_count and
// NAME_seconds_sum_ns (counters are integers).
enum class HistogramPart : uint8_t { kNone, kBucket, kCount, kSum };
// Shortens name.family to NAME_seconds, unless the result is kNone.
HistogramPart take_histogram_part(CounterName& name);

inline constexpr size_t kMaxCounterLabels = 4;

}  // namespace farpage::coordinator
