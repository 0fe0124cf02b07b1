// FakeVerbs: RDMA devices that exist in memory only. They record the calls and complete what the
// test tells them to, so that tests of attributes and of the routing of completions need no
// hardware.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "rdma/verbs/verbs_library.h"

namespace farpage::rdma::verbs {

struct FakePort {
  ibv_port_attr attributes{};
  std::vector<ibv_gid_entry> gids;
};

struct FakeDevice {
  std::string name = "fake0";
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  bool can_be_opened = true;
  ibv_device_attr limits{};
  std::vector<FakePort> ports;
};

// A RoCE device with one active port, MTU 4096, GID 0 link-local, GID 1 ::ffff:10.0.0.1, both v2.
FakeDevice fake_roce_device();
ibv_gid_entry fake_gid(uint32_t index, const std::string& text, ibv_gid_type type,
                       uint32_t port = 1);

struct ModifyCall {
  uint32_t qpn = 0;
  ibv_qp_attr attributes{};
  int mask = 0;
  size_t queue_pairs_alive = 0;
};

struct RegisterCall {
  const void* address = nullptr;
  size_t bytes = 0;
  int access = 0;
  const ibv_pd* domain = nullptr;
};

struct PostedRequest {
  uint32_t qpn = 0;
  ibv_send_wr request{};
  ibv_sge slice{};
  int doorbell = 0;  // requests of one post have the same number
};

// Threads: any.
class FakeVerbs final : public VerbsLibrary {
 public:
  explicit FakeVerbs(std::vector<FakeDevice> devices);
  ~FakeVerbs() override;

  // State that the test sets and reads; hold the lock if the code under test has a thread.
  struct State {
    std::mutex mutex;
    std::vector<FakeDevice> devices;
    std::vector<ModifyCall> modified;
    std::vector<RegisterCall> registered;
    std::vector<PostedRequest> posted;
    std::deque<ibv_wc> completions;
    std::deque<ibv_async_event> events;
    std::vector<ibv_qp*> queue_pairs;  // alive
    int doorbells = 0;
    int post_takes = -1;   // requests taken before an error; -1: all
    int modify_error = 0;  // returned by modify_qp
    bool register_fails = false;
    bool completion_queue_broken = false;
    int armed = 0;
    int alive = 0;  // objects created and not destroyed
    uint32_t next_number = 0x100;
  };
  State& state() const { return *state_; }

  // Completes a posted request as the device would.
  void complete(uint64_t request_id, ibv_wc_status status);
  void raise(const ibv_async_event& event);

  ibv_device** get_device_list(int* count) const override;
  void free_device_list(ibv_device** list) const override;
  ibv_context* open_device(ibv_device* device) const override;
  int close_device(ibv_context* context) const override;
  int query_device(ibv_context* context, ibv_device_attr* attributes) const override;
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const override;
  ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                          size_t max_entries) const override;
  int get_async_event(ibv_context* context, ibv_async_event* event) const override;
  void ack_async_event(ibv_async_event* event) const override;
  const char* event_type_str(ibv_event_type type) const override;
  ibv_pd* alloc_pd(ibv_context* context) const override;
  int dealloc_pd(ibv_pd* pd) const override;
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) const override;
  int dereg_mr(ibv_mr* mr) const override;
  ibv_comp_channel* create_comp_channel(ibv_context* context) const override;
  int destroy_comp_channel(ibv_comp_channel* channel) const override;
  ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel) const override;
  int destroy_cq(ibv_cq* cq) const override;
  int get_cq_event(ibv_comp_channel* channel) const override;
  void ack_cq_events(ibv_cq* cq, unsigned count) const override;
  const char* wc_status_str(ibv_wc_status status) const override;
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) const override;
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) const override;
  int destroy_qp(ibv_qp* qp) const override;

 private:
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<ibv_device>> handles_;
  Fd async_events_;
  Fd cq_events_;
};

}  // namespace farpage::rdma::verbs
