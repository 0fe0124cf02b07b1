#include "rdma/verbs/verbs.h"

#include "rdma/verbs/port_facts.h"
#include "rdma/verbs/verbs_library.h"
#include "rdma/verbs/verbs_memory_host.h"
#include "rdma/verbs/verbs_transport.h"

namespace farpage::rdma {

bool built_with_verbs() {
  return true;
}

Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options) {
  FARPAGE_TRY(library, verbs::load_verbs_library());
  return std::make_unique<verbs::VerbsTransport>(std::move(library), options);
}

Result<std::unique_ptr<MemoryHost>> make_verbs_memory_host(const VerbsHostOptions& options) {
  FARPAGE_TRY(library, verbs::load_verbs_library());
  return verbs::VerbsMemoryHost::create(library, options);
}

Result<std::vector<DeviceReport>> list_devices() {
  FARPAGE_TRY(library, verbs::load_verbs_library());
  const verbs::Survey survey = verbs::survey_devices(*library);
  std::vector<DeviceReport> reports;
  for (const verbs::PortFacts& port : survey.ports) reports.push_back(verbs::report_of(port));
  for (const std::string& reason : survey.unreadable) {
    DeviceReport report;
    report.device = reason.substr(0, reason.find(':'));
    report.unusable_because = reason;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace farpage::rdma
