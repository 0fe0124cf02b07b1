// The options of `farpage node`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/host_port.h"
#include "cli/subcommand.h"
#include "coordinator/api.h"
#include "rdma/transport_choice.h"

namespace farpage::cli {

inline constexpr uint64_t kDefaultLendBytes = uint64_t{1} << 30;

struct NodeSettings {
  std::string coordinator;
  std::optional<uint64_t> lend_bytes;  // nullopt: kDefaultLendBytes, if there is no --spill
  std::string spill;                   // see parse_spill(); empty: the node lends memory
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  std::string name;                 // empty: the host's, made unique (node_name.h)
  std::vector<std::string> labels;  // KEY=VALUE each
  std::string state_directory;      // empty: the node has no identity
  std::string listen_agent = "127.0.0.1:0";
  std::string advertise;  // empty: the host of listen_agent, or of tcp_listen for TCP
  std::string transports = "auto";
  std::string tcp_listen = "127.0.0.1:0";
  std::string shm_socket;  // empty: default_shm_socket()
  std::string device;
  int64_t device_port = 0;
  int64_t gid_index = -1;
  int64_t mtu_bytes = 0;
  int64_t max_rd_atomic = 0;
  int64_t max_connections = 1024;
  bool hugepages = false;
  bool lazy = false;
  int64_t numa_node = -1;
  std::string token_file;
  bool insecure = false;
  Milliseconds heartbeat_interval{1000};
  Milliseconds leave_timeout{30'000};
  Milliseconds session_grace{600'000};
  std::string repair_rate = "auto";
  std::string output = "text";
};

// The options of the subcommand, bound to `settings`.
void add_options(Subcommand& subcommand, NodeSettings& settings);

// The directory for sockets and locks of this user's nodes: /run/farpage for root, otherwise below
// $XDG_RUNTIME_DIR or /tmp.
std::string node_directory();

// The socket on which a node of that name accepts borrowers of its own host.
std::string default_shm_socket(const std::string& node_name);

// What --transports says. A node that lends a file offers tcp alone. kInvalid names the flag.
Result<rdma::TransportChoice> transports_of(const NodeSettings& settings);

// kInvalid names the flag.
Result<coordinator::Labels> parse_labels(const std::vector<std::string>& labels);

// Validates the settings before anything is started: kInvalid names the flag.
Status check(const NodeSettings& settings);

}  // namespace farpage::cli
