#include "tests/unit/rdma/verbs/fake_verbs.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace farpage::rdma::verbs {
namespace {

// The inline calls reach the fake through their context argument.
struct FakeContext {
  ibv_context base{};  // first
  FakeVerbs::State* state = nullptr;
  const FakeDevice* device = nullptr;
};
FakeContext* fake(ibv_context* context) {
  return reinterpret_cast<FakeContext*>(context);
}

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  FakeVerbs::State& state = *fake(qp->context)->state;
  const std::lock_guard lock(state.mutex);
  ++state.doorbells;
  int taken = 0;
  for (ibv_send_wr* request = first; request != nullptr; request = request->next) {
    if (state.post_takes >= 0 && taken++ >= state.post_takes) {
      *bad = request;
      return ENOMEM;
    }
    state.posted.push_back({qp->qp_num, *request,
                            request->num_sge > 0 ? request->sg_list[0] : ibv_sge{},
                            state.doorbells});
  }
  return 0;
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
  FakeVerbs::State& state = *fake(cq->context)->state;
  const std::lock_guard lock(state.mutex);
  if (state.completion_queue_broken) return -1;
  int stored = 0;
  for (; stored < count && !state.completions.empty(); ++stored) {
    completions[stored] = state.completions.front();
    state.completions.pop_front();
  }
  return stored;
}

int req_notify_cq(ibv_cq* cq, int /*solicited_only*/) {
  FakeVerbs::State& state = *fake(cq->context)->state;
  const std::lock_guard lock(state.mutex);
  ++state.armed;
  return 0;
}

}  // namespace

ibv_gid_entry fake_gid(uint32_t index, const std::string& text, ibv_gid_type type, uint32_t port) {
  ibv_gid_entry entry{};
  entry.gid_index = index;
  entry.port_num = port;
  entry.gid_type = type;
  inet_pton(AF_INET6, text.c_str(), entry.gid.raw);
  return entry;
}

FakeDevice fake_roce_device() {
  FakeDevice device;
  device.limits.phys_port_cnt = 1;
  device.limits.max_qp_init_rd_atom = 16;
  device.limits.max_qp_rd_atom = 16;
  device.limits.max_qp_wr = 1024;
  device.limits.max_cqe = 4096;
  FakePort port;
  port.attributes.state = IBV_PORT_ACTIVE;
  port.attributes.active_mtu = IBV_MTU_4096;
  port.attributes.max_msg_sz = 1U << 30;
  port.attributes.gid_tbl_len = 8;
  port.attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.gids = {fake_gid(0, "fe80::1", IBV_GID_TYPE_ROCE_V2),
               fake_gid(1, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2)};
  device.ports = {port};
  return device;
}

FakeVerbs::FakeVerbs(std::vector<FakeDevice> devices)
    : state_(std::make_unique<State>()),
      async_events_(eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE)),
      cq_events_(eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE)) {
  state_->devices = std::move(devices);
  for (const FakeDevice& device : state_->devices) {
    auto handle = std::make_unique<ibv_device>();
    std::snprintf(handle->name, sizeof handle->name, "%s", device.name.c_str());
    handle->transport_type = device.transport;
    handles_.push_back(std::move(handle));
  }
}

FakeVerbs::~FakeVerbs() = default;

void FakeVerbs::complete(uint64_t request_id, ibv_wc_status status) {
  const std::lock_guard lock(state_->mutex);
  ibv_wc completion{};
  completion.wr_id = request_id;
  completion.status = status;
  state_->completions.push_back(completion);
  if (state_->armed > 0) eventfd_write(cq_events_.get(), 1);
}

void FakeVerbs::raise(const ibv_async_event& event) {
  const std::lock_guard lock(state_->mutex);
  state_->events.push_back(event);
  eventfd_write(async_events_.get(), 1);
}

ibv_device** FakeVerbs::get_device_list(int* count) const {
  auto** list = new ibv_device*[handles_.size() + 1]();
  for (size_t i = 0; i < handles_.size(); ++i) list[i] = handles_[i].get();
  *count = static_cast<int>(handles_.size());
  ++state_->alive;
  return list;
}

void FakeVerbs::free_device_list(ibv_device** list) const {
  --state_->alive;
  delete[] list;
}

ibv_context* FakeVerbs::open_device(ibv_device* device) const {
  const auto known = std::ranges::find_if(
      state_->devices, [&](const FakeDevice& each) { return each.name == device->name; });
  if (!known->can_be_opened) {
    errno = EACCES;
    return nullptr;
  }
  auto* context = new FakeContext;
  context->state = state_.get();
  context->device = &*known;
  context->base.device = device;
  context->base.async_fd = async_events_.get();
  context->base.ops.post_send = post_send;
  context->base.ops.poll_cq = poll_cq;
  context->base.ops.req_notify_cq = req_notify_cq;
  ++state_->alive;
  return &context->base;
}

int FakeVerbs::close_device(ibv_context* context) const {
  --state_->alive;
  delete fake(context);
  return 0;
}

int FakeVerbs::query_device(ibv_context* context, ibv_device_attr* attributes) const {
  *attributes = fake(context)->device->limits;
  return 0;
}

int FakeVerbs::query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) const {
  *attributes = fake(context)->device->ports.at(port - 1U).attributes;
  return 0;
}

ssize_t FakeVerbs::query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                   size_t max_entries) const {
  size_t count = 0;
  for (const FakePort& port : fake(context)->device->ports) {
    for (const ibv_gid_entry& gid : port.gids) {
      if (count == max_entries) return -EINVAL;
      entries[count++] = gid;
    }
  }
  return static_cast<ssize_t>(count);
}

int FakeVerbs::get_async_event(ibv_context* /*context*/, ibv_async_event* event) const {
  eventfd_t ignored = 0;
  if (eventfd_read(async_events_.get(), &ignored) != 0) return -1;
  const std::lock_guard lock(state_->mutex);
  *event = state_->events.front();
  state_->events.pop_front();
  return 0;
}

void FakeVerbs::ack_async_event(ibv_async_event* /*event*/) const {}

const char* FakeVerbs::event_type_str(ibv_event_type /*type*/) const {
  return "fake event";
}

ibv_pd* FakeVerbs::alloc_pd(ibv_context* context) const {
  ++state_->alive;
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}

int FakeVerbs::dealloc_pd(ibv_pd* pd) const {
  --state_->alive;
  delete pd;
  return 0;
}

ibv_mr* FakeVerbs::reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) const {
  if (state_->register_fails) {
    errno = ENOMEM;
    return nullptr;
  }
  ++state_->alive;
  state_->registered.push_back({address, bytes, access, pd});
  auto* mr = new ibv_mr{};
  mr->lkey = mr->rkey = ++state_->next_number;
  return mr;
}

int FakeVerbs::dereg_mr(ibv_mr* mr) const {
  --state_->alive;
  delete mr;
  return 0;
}

ibv_comp_channel* FakeVerbs::create_comp_channel(ibv_context* context) const {
  ++state_->alive;
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = cq_events_.get();
  return channel;
}

int FakeVerbs::destroy_comp_channel(ibv_comp_channel* channel) const {
  --state_->alive;
  delete channel;
  return 0;
}

ibv_cq* FakeVerbs::create_cq(ibv_context* context, int entries, ibv_comp_channel* channel) const {
  ++state_->alive;
  auto* cq = new ibv_cq{};
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  return cq;
}

int FakeVerbs::destroy_cq(ibv_cq* cq) const {
  --state_->alive;
  delete cq;
  return 0;
}

int FakeVerbs::get_cq_event(ibv_comp_channel* /*channel*/) const {
  eventfd_t ignored = 0;
  return eventfd_read(cq_events_.get(), &ignored);
}

void FakeVerbs::ack_cq_events(ibv_cq* /*cq*/, unsigned /*count*/) const {}

const char* FakeVerbs::wc_status_str(ibv_wc_status /*status*/) const {
  return "fake status";
}

ibv_qp* FakeVerbs::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) const {
  auto* qp = new ibv_qp{};
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = attributes->send_cq;
  qp->qp_num = ++state_->next_number;
  const std::lock_guard lock(state_->mutex);
  ++state_->alive;
  state_->queue_pairs.push_back(qp);
  return qp;
}

int FakeVerbs::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->modify_error != 0) return state_->modify_error;
  state_->modified.push_back({qp->qp_num, *attributes, mask, state_->queue_pairs.size()});
  return 0;
}

int FakeVerbs::destroy_qp(ibv_qp* qp) const {
  const std::lock_guard lock(state_->mutex);
  --state_->alive;
  std::erase(state_->queue_pairs, qp);
  delete qp;
  return 0;
}

}  // namespace farpage::rdma::verbs
