// Metrics: the content of /metrics, in the Prometheus text format.
//
// The coordinator's own series start with farpage_coordinator_. Series that nodes and regions push
// in heartbeats keep their names and get the label node, or region and name. Names that end in
// _total are counters, the others gauges.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "coordinator/cluster.h"

namespace farpage::coordinator {

// Threads: any.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void count_request(const std::string& route, const std::string& method, int status,
                     Nanoseconds elapsed);
  // `facts` nullopt: this coordinator does not lead.
  std::string text(const std::optional<ClusterFacts>& facts, uint32_t long_polls) const;

 private:
  struct Requests;
  const std::unique_ptr<Requests> requests_;
};

}  // namespace farpage::coordinator
