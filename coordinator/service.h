// Service: the whole coordinator: the cluster, its HTTP server and its four background threads
// (expiry; retries of unconfirmed revocations; nodes that are to lend more or less; answers to
// those who wait for events).
//
// The routes are described in docs/protocol-rest.md and openapi.json.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/agent_client.h"
#include "coordinator/cluster.h"
#include "coordinator/election.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

inline constexpr uint16_t kDefaultPort = 7070;

struct ServiceOptions {
  std::string host = "127.0.0.1";
  uint16_t port = kDefaultPort;  // 0: any free one, see Service::port()
  // Bearer token required on all paths but /healthz, /readyz and /version. Empty: none.
  std::string token;
  // Allows a coordinator without token to listen beyond loopback: any peer that reaches it gets
  // memory and keys.
  bool insecure = false;
  uint32_t request_threads = 16;
  uint32_t max_long_polls = 4096;    // more get 503 with Retry-After; each holds a connection
  Milliseconds tick_interval{1000};  // a wakeup can delay a local fault by a context switch
  // Where others reach this coordinator, for those that do not lead; empty: url().
  std::string advertise;
  // The service sets seed and first_sequence itself and ignores these two.
  StateOptions state;
};

// Threads: any.
class Service {
 public:
  // Serves when it returns. kInvalid: names the option (also an empty token beyond loopback without
  // `insecure`). kConflict: the port is taken. Else the store's failure. `clock` must outlive
  // the service.
  static Result<std::unique_ptr<Service>> create(ServiceOptions options,
                                                 std::unique_ptr<Store> store,
                                                 std::unique_ptr<AgentClient> agents,
                                                 const Clock& clock);
  // One of several coordinators: serves the cluster while it is elected, and answers who leads
  // while it is not. `make_agents` is called for each term.
  static Result<std::unique_ptr<Service>> create_elected(
      ServiceOptions options, std::unique_ptr<Election> election,
      std::function<std::unique_ptr<AgentClient>()> make_agents, const Clock& clock);
  virtual ~Service() = default;  // stops

  virtual uint16_t port() const = 0;
  virtual std::string url() const = 0;  // http://host:port; the host as configured
  // Wakes the long polls, lets running requests finish, and returns when all threads have ended.
  virtual void stop() = 0;
  // For tests: the first broken invariant of the state machine; empty when all hold, and while
  // another coordinator leads.
  virtual std::string check() const = 0;
};

}  // namespace farpage::coordinator
