#include "node/report.h"

#include <fmt/format.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

namespace farpage::node {
namespace {

using Label = prometheus::ClientMetric::Label;

struct CounterName {
  const char* name;
  const char* help;
  prometheus::MetricType type;
  uint64_t rdma::HostCounters::*field;
};

constexpr auto kCounter = prometheus::MetricType::Counter;
constexpr auto kGauge = prometheus::MetricType::Gauge;

// One row for each number of a MemoryHost; every row has the label "transport".
constexpr std::array<CounterName, 8> kHostCounters = {{
    {"farpage_node_reads_total", "READs answered", kCounter, &rdma::HostCounters::reads},
    {"farpage_node_writes_total", "WRITEs answered", kCounter, &rdma::HostCounters::writes},
    {"farpage_node_read_bytes_total", "Bytes given to READs", kCounter,
     &rdma::HostCounters::bytes_read},
    {"farpage_node_written_bytes_total", "Bytes taken from WRITEs", kCounter,
     &rdma::HostCounters::bytes_written},
    {"farpage_node_saved_bytes_total", "Bytes of WRITEs that packing has kept off the wire",
     kCounter, &rdma::HostCounters::bytes_saved},
    {"farpage_node_refused_total", "Operations refused: key, generation or bounds", kCounter,
     &rdma::HostCounters::refused},
    {"farpage_node_malformed_total", "Frames that closed their connection", kCounter,
     &rdma::HostCounters::malformed},
    {"farpage_node_peers", "Borrowers connected now", kGauge, &rdma::HostCounters::peers},
}};

prometheus::ClientMetric sample(prometheus::MetricType type, uint64_t value,
                                std::vector<Label> labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  (type == kCounter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
  return metric;
}

prometheus::MetricFamily gauge(const char* name, const char* help, uint64_t value) {
  return {name, help, kGauge, {sample(kGauge, value, {})}};
}

prometheus::MetricFamily slabs_by_state(const SlabCounts& slabs) {
  prometheus::MetricFamily family{"farpage_node_slabs", "Slabs by state", kGauge, {}};
  const auto add = [&](SlabState state, uint32_t count) {
    family.metric.push_back(sample(kGauge, count, {{"state", std::string(to_string(state))}}));
  };
  add(SlabState::kFree, slabs.free);
  add(SlabState::kLeased, slabs.leased);
  add(SlabState::kScrubbing, slabs.scrubbing);
  return family;
}

// Names may hold any bytes from a user; invalid UTF-8 must not make dump() throw.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

coordinator::Counters counters_of(const NodeReport& report) {
  coordinator::Counters counters;
  for (const TransportReport& transport : report.transports)
    for (const CounterName& counter : kHostCounters)
      counters[fmt::format("{}{{transport=\"{}\"}}", counter.name,
                           rdma::to_string(transport.kind))] = transport.counters.*counter.field;
  return counters;
}

std::string prometheus_text(const NodeReport& report) {
  std::vector<prometheus::MetricFamily> families;
  families.push_back(
      {"farpage_node_info",
       "1, with what this process is",
       kGauge,
       {sample(kGauge, 1, {{"node", report.id.value}, {"version", FARPAGE_VERSION}})}});
  families.push_back(
      gauge("farpage_node_joined", "1 while the coordinator answers", report.joined ? 1 : 0));
  families.push_back(
      gauge("farpage_node_leaving", "1 once new leases are refused", report.leaving ? 1 : 0));
  families.push_back(gauge("farpage_node_slab_bytes", "Size of one slab", report.slab_bytes));
  families.push_back(slabs_by_state(report.slabs));
  for (const CounterName& counter : kHostCounters) {
    prometheus::MetricFamily family{counter.name, counter.help, counter.type, {}};
    for (const TransportReport& transport : report.transports)
      family.metric.push_back(
          sample(counter.type, transport.counters.*counter.field,
                 {{"transport", std::string(rdma::to_string(transport.kind))}}));
    families.push_back(std::move(family));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

std::string status_json(const NodeReport& report) {
  nlohmann::json transports = nlohmann::json::array();
  for (size_t i = 0; i < report.addresses.size(); ++i) {
    nlohmann::json transport = {{"kind", rdma::to_string(report.addresses[i].kind)},
                                {"address", report.addresses[i].text}};
    if (i < report.transports.size()) {
      const rdma::HostCounters& counters = report.transports[i].counters;
      transport["counters"] = {{"reads", counters.reads},
                               {"writes", counters.writes},
                               {"bytes_read", counters.bytes_read},
                               {"bytes_written", counters.bytes_written},
                               {"bytes_saved", counters.bytes_saved},
                               {"refused", counters.refused},
                               {"malformed", counters.malformed},
                               {"peers", counters.peers}};
    }
    transports.push_back(std::move(transport));
  }
  return dump({{"id", report.id.value},
               {"version", FARPAGE_VERSION},
               {"incarnation", report.incarnation},
               {"joined", report.joined},
               {"leaving", report.leaving},
               {"slab_bytes", report.slab_bytes},
               {"slabs",
                {{"free", report.slabs.free},
                 {"leased", report.slabs.leased},
                 {"scrubbing", report.slabs.scrubbing}}},
               {"transports", std::move(transports)}});
}

}  // namespace farpage::node
