// A coordinator on a free loopback port with fake agents, and a client for it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "coordinator/client.h"
#include "coordinator/memory_store.h"
#include "coordinator/service.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {

inline ServiceOptions test_options() {
  ServiceOptions options;
  options.port = 0;
  options.request_threads = 4;
  options.max_long_polls = 4;
  options.tick_interval = Milliseconds(20);
  options.state.longest_tick = Seconds(1 << 20);  // tests move the clock in large steps
  return options;
}

class ServiceTest : public ::testing::Test {
 protected:
  void start(ServiceOptions options, std::unique_ptr<Store> store = make_memory_store()) {
    auto service = Service::create(options, std::move(store), agents_.client(), clock_);
    ASSERT_TRUE(service.has_value()) << service.error().message();
    service_ = std::move(*service);
    client_ = client(options.token);
  }
  void SetUp() override { start(test_options()); }
  void TearDown() override {
    if (!service_) return;
    EXPECT_EQ(service_->check(), "");
    EXPECT_EQ(agents_.double_lends(), 0U);
    service_->stop();
  }

  std::unique_ptr<Client> client(const std::string& token = "") const {
    auto made = Client::create(ClientOptions{service_->url(), token, Milliseconds(10000)});
    EXPECT_TRUE(made.has_value());
    return std::move(*made);
  }
  uint16_t port() const { return service_->port(); }
  // Follows the events from the start until one of this kind comes.
  bool sees(EventKind kind) {
    uint64_t since = 0;
    while (true) {
      const auto batch = client_->events(since, Milliseconds(10000));
      if (!batch || batch->events.empty()) return false;
      for (const Event& event : batch->events)
        if (event.kind == kind) return true;
      since = batch->next_since;
    }
  }

  ManualClock clock_;
  FakeAgents agents_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Client> client_;
};

}  // namespace farpage::coordinator
