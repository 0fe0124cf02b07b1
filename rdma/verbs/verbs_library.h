// VerbsLibrary: the calls of libibverbs that we use, resolved at run time.
//
// An interface, so that our use of a device can be tested without one. Each method is the function
// of that name (ibv_...) and keeps its conventions: null or an error number on failure, errno set.
// The calls of the data path (ibv_post_send, ibv_poll_cq, ibv_req_notify_cq) are not here:
// libibverbs defines them inline, through the pointers in ibv_context.
//
// Threads: any.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace farpage::rdma::verbs {

class VerbsLibrary {
 public:
  virtual ~VerbsLibrary() = default;

  virtual ibv_device** get_device_list(int* count) const = 0;
  virtual void free_device_list(ibv_device** list) const = 0;
  virtual ibv_context* open_device(ibv_device* device) const = 0;
  virtual int close_device(ibv_context* context) const = 0;
  virtual int query_device(ibv_context* context, ibv_device_attr* attributes) const = 0;
  virtual int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const = 0;
  // The valid entries of all ports; negative error number on failure.
  virtual ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                  size_t max_entries) const = 0;

  virtual int get_async_event(ibv_context* context, ibv_async_event* event) const = 0;
  virtual void ack_async_event(ibv_async_event* event) const = 0;
  virtual const char* event_type_str(ibv_event_type type) const = 0;

  virtual ibv_pd* alloc_pd(ibv_context* context) const = 0;
  virtual int dealloc_pd(ibv_pd* pd) const = 0;
  virtual ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) const = 0;
  virtual int dereg_mr(ibv_mr* mr) const = 0;

  virtual ibv_comp_channel* create_comp_channel(ibv_context* context) const = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) const = 0;
  virtual ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel) const = 0;
  virtual int destroy_cq(ibv_cq* cq) const = 0;
  virtual int get_cq_event(ibv_comp_channel* channel) const = 0;
  virtual void ack_cq_events(ibv_cq* cq, unsigned count) const = 0;
  virtual const char* wc_status_str(ibv_wc_status status) const = 0;

  virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) const = 0;
  virtual int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) const = 0;
  virtual int destroy_qp(ibv_qp* qp) const = 0;
};

// kUnsupported, with the package's name, if the library is absent or too old. It stays loaded: its
// providers cannot be unloaded safely.
Result<std::shared_ptr<const VerbsLibrary>> load_verbs_library(
    const std::string& file = "libibverbs.so.1");

}  // namespace farpage::rdma::verbs
