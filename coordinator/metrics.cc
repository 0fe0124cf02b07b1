#include "coordinator/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "coordinator/counter_name.h"

namespace farpage::coordinator {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

const prometheus::Histogram::BucketBoundaries kSeconds{
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};

// Families by name, each with its series.
class Families {
 public:
  void add(const std::string& name, const char* help, const Labels& labels, double value) {
    MetricFamily& family = families_[name];
    const bool total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    family.name = name;
    family.help = help;
    family.type = total ? MetricType::Counter : MetricType::Gauge;
    ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [key, text] : labels) metric.label.push_back({key, text});
    (total ? metric.counter.value : metric.gauge.value) = value;
  }

  void add_pushed(const Counters& counters, const Labels& owner) {
    for (const auto& [text, value] : counters) {
      auto name = parse_counter_name(text);
      if (!name) continue;  // refused when it was pushed
      if (const HistogramPart part = take_histogram_part(*name); part != HistogramPart::kNone) {
        add_histogram_part(*name, part, value, owner);
        continue;
      }
      Labels labels = name->labels;
      labels.insert(labels.end(), owner.begin(), owner.end());
      add(name->family, kPushed, labels, static_cast<double>(value));
    }
  }

  std::vector<MetricFamily> take() {
    std::vector<MetricFamily> list;
    for (auto& [name, family] : families_) list.push_back(std::move(family));
    return list;
  }

 private:
  static constexpr const char* kPushed = "Pushed in heartbeats";

  void add_histogram_part(const CounterName& name, HistogramPart part, uint64_t value,
                          const Labels& owner) {
    MetricFamily& family = families_[name.family];
    family.name = name.family;
    family.help = kPushed;
    family.type = MetricType::Histogram;
    std::vector<ClientMetric::Label> labels;
    double edge = 0;
    for (const auto& [key, text] : name.labels) {
      if (key == "le") edge = std::strtod(text.c_str(), nullptr);
      if (key != "le") labels.push_back({key, text});
    }
    for (const auto& [key, text] : owner) labels.push_back({key, text});
    // The parts of one histogram come together: those of earlier owners are not looked at.
    const auto is_of_owner = [&](const ClientMetric& known) {
      return known.label.size() >= owner.size() &&
             std::equal(owner.rbegin(), owner.rend(), known.label.rbegin(),
                        [](const auto& mine, const ClientMetric::Label& theirs) {
                          return mine.first == theirs.name && mine.second == theirs.value;
                        });
    };
    auto metric = family.metric.end();
    for (auto known = family.metric.end(); known != family.metric.begin() && is_of_owner(*--known);)
      if (known->label == labels) metric = known;
    if (metric == family.metric.end()) {
      metric = family.metric.emplace(family.metric.end());
      metric->label = std::move(labels);
    }
    ClientMetric::Histogram& histogram = metric->histogram;
    switch (part) {
      case HistogramPart::kBucket: {
        auto at = std::find_if(histogram.bucket.begin(), histogram.bucket.end(),
                               [&](const auto& bucket) { return bucket.upper_bound > edge; });
        histogram.bucket.insert(at, {.cumulative_count = value, .upper_bound = edge});
        break;
      }
      case HistogramPart::kCount:
        histogram.sample_count = value;
        break;
      case HistogramPart::kSum:
        histogram.sample_sum = static_cast<double>(value) / 1e9;
        break;
      case HistogramPart::kNone:
        break;
    }
  }

  std::map<std::string, MetricFamily> families_;
};

void add_totals(Families& families, const ClusterFacts& facts) {
  const Totals& totals = facts.totals;
  const auto add = [&](const char* name, const char* help, const Labels& labels, uint64_t value) {
    families.add(std::string("farpage_coordinator_") + name, help, labels,
                 static_cast<double>(value));
  };
  const char* nodes = "Memory nodes by state";
  add("nodes", nodes, {{"state", "alive"}}, totals.nodes_alive);
  add("nodes", nodes, {{"state", "cordoned"}}, totals.nodes_cordoned);
  add("nodes", nodes, {{"state", "draining"}}, totals.nodes_draining);
  add("nodes", nodes, {{"state", "lost"}}, totals.nodes_lost);
  const char* slabs = "Slabs of all nodes that lend memory, by use";
  add("slabs", slabs, {{"state", "free"}}, totals.slabs_free);
  add("slabs", slabs, {{"state", "unavailable"}}, totals.slabs_unavailable);
  add("slabs", slabs, {{"state", "placing"}}, totals.slabs_placing);
  add("slabs", slabs, {{"state", "leased"}}, totals.slabs_leased);
  add("slabs", slabs, {{"state", "revoking"}}, totals.slabs_revoking);
  add("slabs", slabs, {{"state", "foreign"}}, totals.slabs_foreign);
  add("degraded_slabs", "Slabs of regions that lack a replica", {}, totals.slabs_degraded);
  add("repairing_slabs", "Slabs of regions of which a replica is filling", {},
      totals.slabs_repairing);
  add("moving_slabs", "Slabs of regions of which a replica is to be moved elsewhere", {},
      totals.slabs_moving);
  add("spilled_slabs", "Slabs that are leased on disks (node --spill)", {}, totals.slabs_spilled);
  add("spill_capacity_bytes", "Room of disks that all nodes offer", {}, totals.bytes_spill);
  add("spill_free_bytes", "Room of disks of nodes that are alive that can be lent", {},
      totals.bytes_spill_free);
  add("capacity_bytes", "Memory that all nodes offer", {}, totals.bytes);
  add("free_bytes", "Memory of nodes that are alive that can be lent", {}, totals.bytes_free);
  add("regions", "Regions", {}, totals.regions);
  const char* leases = "Leases by state";
  add("leases", leases, {{"state", "held"}}, totals.leases - totals.leases_lost);
  add("leases", leases, {{"state", "lost"}}, totals.leases_lost);
  add("pending_revocations", "Slabs whose revocation their node has not confirmed", {},
      facts.pending_revocations);
  add("store_up", "1 while the store can be written", {}, facts.store_works ? 1 : 0);
  for (const auto& [id, free] : facts.reported_free_slabs)
    add("node_reported_free_slabs", "Free slabs as the node itself counts them",
        {{"node", id.value}}, free);
}

}  // namespace

struct Metrics::Requests {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& total = prometheus::BuildCounter()
                                                       .Name("farpage_coordinator_requests_total")
                                                       .Help("Requests by route, method and status")
                                                       .Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds =
      prometheus::BuildHistogram()
          .Name("farpage_coordinator_request_seconds")
          .Help("Time in the handler; long polls wait here")
          .Register(registry);
};

Metrics::Metrics() : requests_(std::make_unique<Requests>()) {}
Metrics::~Metrics() = default;

void Metrics::count_request(const std::string& route, const std::string& method, int status,
                            Nanoseconds elapsed) {
  requests_->total.Add({{"route", route}, {"method", method}, {"code", std::to_string(status)}})
      .Increment();
  requests_->seconds.Add({{"route", route}, {"method", method}}, kSeconds)
      .Observe(std::chrono::duration<double>(elapsed).count());
}

std::string Metrics::text(const std::optional<ClusterFacts>& facts, uint32_t long_polls) const {
  Families families;
  families.add("farpage_coordinator_leads", "1 while this coordinator leads", {}, facts ? 1 : 0);
  families.add("farpage_coordinator_long_polls", "Requests for events that wait now", {},
               long_polls);
  if (facts) {
    add_totals(families, *facts);
    for (const NodeInfo& node : facts->nodes)
      families.add_pushed(node.counters, {{"node", node.join.id.value}});
    for (const RegionInfo& region : facts->regions)
      families.add_pushed(region.counters, {{"region", region.id.value}, {"name", region.name}});
  }
  std::vector<MetricFamily> all = families.take();
  for (MetricFamily& family : requests_->registry.Collect()) all.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace farpage::coordinator
