// Report: the results of a benchmark, in the format of perftest (linux-rdma/perftest) or as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "bench/environment.h"

namespace farpage::bench {

inline double us(uint64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

// One line of latencies.
struct Row {
  std::string name;  // empty when there is only one
  uint64_t bytes = 0;
  Histogram latency_ns;
};

// One stage of a fault. The means of stages add up to the mean of the whole; percentiles do not, so
// a stage that is not timed itself has none.
struct Stage {
  std::string name;
  double mean_us = 0;
  std::optional<double> p50_us{};
  std::optional<double> p99_us{};
};

// For tables.
std::string number_or_dash(std::optional<double> number);

// One line of throughput.
struct Throughput {
  std::string name;
  uint64_t bytes = 0;  // of one operation
  uint64_t operations = 0;
  Nanoseconds elapsed{0};

  double per_second() const;
  double mb_per_second() const { return per_second() * static_cast<double>(bytes) / 1e6; }
};

struct Report {
  std::string benchmark;  // "fault"
  Environment environment;
  std::vector<std::pair<std::string, std::string>> configuration;  // in the order of printing
  std::vector<Row> rows;
  std::vector<Throughput> throughputs;
  std::vector<Stage> stages;
  std::vector<std::pair<std::string, double>> figures;   // derived: "faults_per_s"
  std::vector<std::pair<std::string, uint64_t>> counts;  // what the pager and the wire counted
};

// The head of the report in every format, as names and values: the environment and the
// configuration.
std::vector<std::pair<std::string, std::string>> facts_of(const Report& report);

// Ends with a line feed.
std::string format_text(const Report& report);
// One JSON object, and a line feed. Latencies are microseconds.
std::string format_json(const Report& report);

}  // namespace farpage::bench
