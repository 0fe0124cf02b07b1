#include "rdma/verbs/port_facts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/verbs/choices.h"
#include "rdma/verbs/resources.h"

namespace farpage::rdma::verbs {
namespace {

constexpr std::array kMtus = {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096};

uint32_t at_least_zero(int value) {
  return value < 0 ? 0 : static_cast<uint32_t>(value);
}

GidType gid_type_of(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kInfiniBand;
  }
}

// Adds each valid GID to its port.
void read_gids(const VerbsLibrary& library, ibv_context* context, size_t table_entries,
               std::vector<PortFacts>& ports) {
  std::vector<ibv_gid_entry> entries(table_entries);
  const ssize_t count = library.query_gid_table(context, entries.data(), entries.size());
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    for (PortFacts& port : ports) {
      if (port.port != entry.port_num) continue;
      GidFacts gid;
      gid.index = entry.gid_index;
      gid.type = gid_type_of(entry.gid_type);
      std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.gid.begin());
      port.gids.push_back(gid);
    }
  }
}

PortFacts facts_of(const ibv_device& device, const ibv_device_attr& limits, uint8_t number,
                   const ibv_port_attr& attributes) {
  PortFacts port;
  port.device = device.name;
  port.port = number;
  port.state = attributes.state;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.iwarp = device.transport_type == IBV_TRANSPORT_IWARP;
  port.active_mtu_bytes = mtu_bytes_of(attributes.active_mtu);
  port.max_message_bytes = attributes.max_msg_sz;
  port.lid = attributes.lid;
  port.max_init_rd_atomic = at_least_zero(limits.max_qp_init_rd_atom);
  port.max_resp_rd_atomic = at_least_zero(limits.max_qp_rd_atom);
  port.max_work_requests = at_least_zero(limits.max_qp_wr);
  port.max_cq_entries = at_least_zero(limits.max_cqe);
  return port;
}

}  // namespace

std::string gid_text(const GidBytes& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, gid.data(), text.data(), text.size());
  return text.data();
}

std::optional<GidBytes> gid_from_text(std::string_view text) {
  GidBytes gid{};
  if (inet_pton(AF_INET6, std::string(text).c_str(), gid.data()) != 1) return std::nullopt;
  return gid;
}

std::string_view to_string(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
  }
  return "?";
}

std::string_view to_string(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "NOP";
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
      return "ACTIVE_DEFER";
  }
  return "?";
}

uint32_t mtu_bytes_of(ibv_mtu mtu) {
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) return 0;
  return 128U << mtu;
}

std::optional<ibv_mtu> mtu_from_bytes(uint32_t bytes) {
  const auto* found =
      std::ranges::find_if(kMtus, [&](ibv_mtu mtu) { return mtu_bytes_of(mtu) == bytes; });
  if (found == kMtus.end()) return std::nullopt;
  return *found;
}

Result<std::vector<PortFacts>> read_ports(const VerbsLibrary& library, ibv_context* context) {
  const std::string name = context->device->name;
  ibv_device_attr limits{};
  if (const int error = library.query_device(context, &limits); error != 0) {
    return fail_errno("query device " + name, error);
  }
  std::vector<PortFacts> ports;
  size_t gid_entries = 0;
  for (unsigned number = 1; number <= limits.phys_port_cnt; ++number) {
    ibv_port_attr attributes{};
    const auto port = static_cast<uint8_t>(number);
    if (const int error = library.query_port(context, port, &attributes); error != 0) {
      return fail_errno("query port " + std::to_string(number) + " of device " + name, error);
    }
    gid_entries += at_least_zero(attributes.gid_tbl_len);
    ports.push_back(facts_of(*context->device, limits, port, attributes));
  }
  read_gids(library, context, gid_entries, ports);
  return ports;
}

Survey survey_devices(const VerbsLibrary& library, std::string_view only_device) {
  Survey survey;
  const DeviceList devices(library);
  for (ibv_device* device : devices.all()) {
    if (!only_device.empty() && only_device != device->name) continue;
    ibv_context* context = library.open_device(device);
    if (context == nullptr) {
      survey.unreadable.push_back(std::string(device->name) +
                                  ": cannot be opened: " + std::strerror(errno) +
                                  " (may this user read and write /dev/infiniband/uverbs*?)");
      continue;
    }
    auto ports = read_ports(library, context);
    if (ports) {
      survey.ports.insert(survey.ports.end(), ports->begin(), ports->end());
    } else {
      survey.unreadable.push_back(ports.error().message());
    }
    library.close_device(context);
  }
  return survey;
}

DeviceReport report_of(const PortFacts& port) {
  DeviceReport report;
  report.device = port.device;
  report.port = port.port;
  report.state = to_string(port.state);
  report.link_layer = port.ethernet ? "Ethernet" : "InfiniBand";
  report.active_mtu_bytes = port.active_mtu_bytes;
  report.max_rd_atomic = port.max_init_rd_atomic;
  for (const GidFacts& gid : port.gids) {
    report.gids.push_back({gid.index, gid_text(gid.gid), std::string(to_string(gid.type))});
  }
  report.unusable_because = why_unusable(port);
  return report;
}

}  // namespace farpage::rdma::verbs
