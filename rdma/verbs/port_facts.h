// Facts about the ports of RDMA devices as plain values: read once from the library, so that every
// choice made from them is a pure function (choices.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rdma/verbs/verbs.h"
#include "rdma/verbs/verbs_library.h"

namespace farpage::rdma::verbs {

using GidBytes = std::array<uint8_t, 16>;

std::string gid_text(const GidBytes& gid);
// Empty if the text is no GID (IPv6 notation).
std::optional<GidBytes> gid_from_text(std::string_view text);

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
std::string_view to_string(GidType type);

struct GidFacts {
  uint32_t index = 0;
  GidBytes gid{};
  GidType type = GidType::kInfiniBand;
};

struct PortFacts {
  std::string device;
  uint8_t port = 0;
  ibv_port_state state = IBV_PORT_NOP;
  bool ethernet = false;  // else InfiniBand
  bool iwarp = false;
  uint32_t active_mtu_bytes = 0;
  uint32_t max_message_bytes = 0;
  uint16_t lid = 0;
  uint32_t max_init_rd_atomic = 0;  // READs one queue pair may have in flight
  uint32_t max_resp_rd_atomic = 0;  // READs one queue pair can answer at once
  uint32_t max_work_requests = 0;
  uint32_t max_cq_entries = 0;
  std::vector<GidFacts> gids;  // by index
};

std::string_view to_string(ibv_port_state state);
// 256 .. 4096; 0 for a value that the specification does not define.
uint32_t mtu_bytes_of(ibv_mtu mtu);
std::optional<ibv_mtu> mtu_from_bytes(uint32_t bytes);

// Every port of `context`'s device. Fails if the device cannot be queried.
Result<std::vector<PortFacts>> read_ports(const VerbsLibrary& library, ibv_context* context);

// Every port of every device, or of the named one; devices that cannot be opened are skipped and
// described in `unreadable`.
struct Survey {
  std::vector<PortFacts> ports;
  std::vector<std::string> unreadable;
};
Survey survey_devices(const VerbsLibrary& library, std::string_view only_device = {});

DeviceReport report_of(const PortFacts& port);

}  // namespace farpage::rdma::verbs
