// The options of `farpage coordinator`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "cli/subcommand.h"
#include "coordinator/etcd_client.h"
#include "coordinator/service.h"
#include "coordinator/store.h"

namespace farpage::cli {

struct CoordinatorSettings {
  std::string listen = "127.0.0.1:7070";
  std::string store = "memory";
  std::string token_file;
  bool insecure = false;
  std::string spread_by;
  std::vector<std::string> quotas;      // NAME=SIZE each
  std::vector<std::string> keeps_free;  // NAME=SIZE or NAME=PERCENT%
  Milliseconds node_time_to_live{5000};
  Milliseconds region_time_to_live{60'000};
  int64_t request_threads = 16;
  int64_t max_long_polls = coordinator::ServiceOptions{}.max_long_polls;
  std::string advertise;
  std::string restore;  // not to serve, but to fill the store from this file
  std::string backup;   // not to serve, but to copy the store to this file
  std::string output = "text";
};

// The options of the subcommand, bound to `settings`.
void add_options(Subcommand& subcommand, CoordinatorSettings& settings);

// kInvalid names the flag.
Result<coordinator::ServiceOptions> service_options(const CoordinatorSettings& settings,
                                                    const std::string& token);

// "memory" or "sqlite:PATH".
Result<std::unique_ptr<coordinator::Store>> open_store(const std::string& text);

// The URLs in "etcd:URL,URL"; nullopt: it is another store.
std::optional<std::string> etcd_of(const std::string& store);
Result<std::shared_ptr<const coordinator::EtcdClient>> open_etcd(const std::string& urls);

}  // namespace farpage::cli
