#include "rdma/verbs/verbs_library.h"

#include <dlfcn.h>

#include <cstring>
#include <string>

namespace farpage::rdma::verbs {
namespace {

// The exported functions under their exported types. Where the header hides one behind a macro or
// an inline function, the type is spelled out.
struct Functions {
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  decltype(&::_ibv_query_gid_table) query_gid_table = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int) = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
};

// Looks functions up one after the other and remembers the first that is missing.
class Resolver {
 public:
  explicit Resolver(void* handle) : handle_(handle) {}

  template <typename Function>
  Resolver& operator()(const char* name, Function& function) {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr && missing_.empty()) missing_ = name;
    std::memcpy(&function, &symbol, sizeof symbol);
    return *this;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

class LoadedLibrary final : public VerbsLibrary {
 public:
  explicit LoadedLibrary(const Functions& functions) : call_(functions) {}

  ibv_device** get_device_list(int* count) const override { return call_.get_device_list(count); }
  void free_device_list(ibv_device** list) const override { call_.free_device_list(list); }
  ibv_context* open_device(ibv_device* device) const override { return call_.open_device(device); }
  int close_device(ibv_context* context) const override { return call_.close_device(context); }
  int query_device(ibv_context* context, ibv_device_attr* attributes) const override {
    return call_.query_device(context, attributes);
  }
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const override {
    // The exported function fills an older, shorter structure: the start of the current one.
    *attributes = {};
    return call_.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
  }
  ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                          size_t max_entries) const override {
    return call_.query_gid_table(context, entries, max_entries, 0, sizeof *entries);
  }

  int get_async_event(ibv_context* context, ibv_async_event* event) const override {
    return call_.get_async_event(context, event);
  }
  void ack_async_event(ibv_async_event* event) const override { call_.ack_async_event(event); }
  const char* event_type_str(ibv_event_type type) const override {
    return call_.event_type_str(type);
  }

  ibv_pd* alloc_pd(ibv_context* context) const override { return call_.alloc_pd(context); }
  int dealloc_pd(ibv_pd* pd) const override { return call_.dealloc_pd(pd); }
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) const override {
    return call_.reg_mr(pd, address, bytes, access);
  }
  int dereg_mr(ibv_mr* mr) const override { return call_.dereg_mr(mr); }

  ibv_comp_channel* create_comp_channel(ibv_context* context) const override {
    return call_.create_comp_channel(context);
  }
  int destroy_comp_channel(ibv_comp_channel* channel) const override {
    return call_.destroy_comp_channel(channel);
  }
  ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel) const override {
    return call_.create_cq(context, entries, nullptr, channel, 0);
  }
  int destroy_cq(ibv_cq* cq) const override { return call_.destroy_cq(cq); }
  int get_cq_event(ibv_comp_channel* channel) const override {
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    return call_.get_cq_event(channel, &cq, &cq_context);
  }
  void ack_cq_events(ibv_cq* cq, unsigned count) const override { call_.ack_cq_events(cq, count); }
  const char* wc_status_str(ibv_wc_status status) const override {
    return call_.wc_status_str(status);
  }

  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) const override {
    return call_.create_qp(pd, attributes);
  }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) const override {
    return call_.modify_qp(qp, attributes, mask);
  }
  int destroy_qp(ibv_qp* qp) const override { return call_.destroy_qp(qp); }

 private:
  Functions call_;
};

}  // namespace

Result<std::shared_ptr<const VerbsLibrary>> load_verbs_library(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return fail(ErrorCode::kUnsupported,
                std::string("cannot load libibverbs (install the packages libibverbs1 and "
                            "ibverbs-providers): ") +
                    dlerror());
  }
  Functions found;
  Resolver resolve(handle);
  resolve("ibv_get_device_list", found.get_device_list)(
      "ibv_free_device_list", found.free_device_list)("ibv_open_device", found.open_device)(
      "ibv_close_device", found.close_device)("ibv_query_device", found.query_device)(
      "ibv_query_port", found.query_port)("_ibv_query_gid_table", found.query_gid_table);
  resolve("ibv_get_async_event", found.get_async_event)(
      "ibv_ack_async_event", found.ack_async_event)("ibv_event_type_str", found.event_type_str);
  resolve("ibv_alloc_pd", found.alloc_pd)("ibv_dealloc_pd", found.dealloc_pd)(
      "ibv_reg_mr", found.reg_mr)("ibv_dereg_mr", found.dereg_mr);
  resolve("ibv_create_comp_channel", found.create_comp_channel)(
      "ibv_destroy_comp_channel", found.destroy_comp_channel)("ibv_create_cq", found.create_cq)(
      "ibv_destroy_cq", found.destroy_cq)("ibv_get_cq_event", found.get_cq_event)(
      "ibv_ack_cq_events", found.ack_cq_events)("ibv_wc_status_str", found.wc_status_str);
  resolve("ibv_create_qp", found.create_qp)("ibv_modify_qp", found.modify_qp)("ibv_destroy_qp",
                                                                              found.destroy_qp);
  if (!resolve.missing().empty()) {
    return fail(ErrorCode::kUnsupported, file + " has no " + resolve.missing() +
                                             ": rdma-core is too old (33 or newer is needed)");
  }
  return std::make_shared<const LoadedLibrary>(found);
}

}  // namespace farpage::rdma::verbs
