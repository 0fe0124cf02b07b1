#include "rdma/verbs/resources.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <utility>

namespace farpage::rdma::verbs {
namespace {

// Each acknowledgement takes a lock, so they are batched.
constexpr unsigned kEventsPerAcknowledgement = 64;

// Why pinning `bytes` may have failed: ENOMEM does not tell.
std::string memlock_hint() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (the limit on locked memory is " + std::to_string(limit.rlim_cur / 1024) +
         " KiB: raise it with 'ulimit -l unlimited' or LimitMEMLOCK=infinity)";
}

}  // namespace

Status set_nonblocking(int fd, std::string_view what) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return fail_errno(what);
  return {};
}

DeviceList::DeviceList(const VerbsLibrary& library) : library_(library) {
  int count = 0;
  list_ = library_.get_device_list(&count);
  if (list_ != nullptr && count > 0) count_ = static_cast<size_t>(count);
}

DeviceList::~DeviceList() {
  if (list_ != nullptr) library_.free_device_list(list_);
}

Result<std::shared_ptr<const Device>> Device::open(
    const std::shared_ptr<const VerbsLibrary>& library, const std::string& name) {
  const DeviceList devices(*library);
  for (ibv_device* found : devices.all()) {
    if (name != found->name) continue;
    ibv_context* context = library->open_device(found);
    if (context == nullptr) return fail_errno("open RDMA device " + name);
    return std::shared_ptr<const Device>(new Device(library, context));
  }
  return fail(ErrorCode::kNotFound, "RDMA device " + name + " is gone");
}

Device::~Device() {
  library_->close_device(context_);
}

Result<std::shared_ptr<const ProtectionDomain>> ProtectionDomain::create(
    std::shared_ptr<const Device> device) {
  ibv_pd* domain = device->library().alloc_pd(device->context());
  if (domain == nullptr) return fail_errno("allocate a protection domain on " + device->name());
  return std::shared_ptr<const ProtectionDomain>(new ProtectionDomain(std::move(device), domain));
}

ProtectionDomain::~ProtectionDomain() {
  device_->library().dealloc_pd(domain_);
}

Result<Registration> Registration::create(std::shared_ptr<const ProtectionDomain> domain,
                                          std::span<std::byte> bytes, int access) {
  const Device& device = domain->device();
  ibv_mr* region = device.library().reg_mr(domain->get(), bytes.data(), bytes.size(), access);
  if (region == nullptr) {
    const int error = errno;
    return fail_errno("register " + std::to_string(bytes.size()) + " bytes with " + device.name() +
                          (error == ENOMEM ? memlock_hint() : ""),
                      error);
  }
  return Registration(std::move(domain), region);
}

Registration::Registration(Registration&& other) noexcept
    : domain_(std::move(other.domain_)), region_(std::exchange(other.region_, nullptr)) {}

Registration::~Registration() {
  if (region_ != nullptr) domain_->device().library().dereg_mr(region_);
}

Result<CompletionQueue> CompletionQueue::create(std::shared_ptr<const Device> device,
                                                uint32_t entries) {
  const VerbsLibrary& library = device->library();
  ibv_comp_channel* channel = library.create_comp_channel(device->context());
  if (channel == nullptr) return fail_errno("create a completion channel on " + device->name());
  CompletionQueue made(std::move(device), channel);
  FARPAGE_TRY_VOID(set_nonblocking(channel->fd, "completion channel"));
  made.queue_ = library.create_cq(made.device_->context(), static_cast<int>(entries), channel);
  if (made.queue_ == nullptr) {
    return fail_errno("create a completion queue of " + std::to_string(entries) + " entries on " +
                      made.device_->name());
  }
  return made;
}

CompletionQueue::CompletionQueue(CompletionQueue&& other) noexcept
    : device_(std::move(other.device_)),
      channel_(std::exchange(other.channel_, nullptr)),
      queue_(std::exchange(other.queue_, nullptr)),
      unacknowledged_(std::exchange(other.unacknowledged_, 0U)) {}

CompletionQueue::~CompletionQueue() {
  if (channel_ == nullptr) return;
  if (queue_ != nullptr) {
    acknowledge();  // destroy_cq waits for it
    device_->library().destroy_cq(queue_);
  }
  device_->library().destroy_comp_channel(channel_);
}

void CompletionQueue::take_events() {
  while (device_->library().get_cq_event(channel_) == 0) ++unacknowledged_;
  if (unacknowledged_ >= kEventsPerAcknowledgement) acknowledge();
}

void CompletionQueue::acknowledge() {
  if (unacknowledged_ > 0) device_->library().ack_cq_events(queue_, unacknowledged_);
  unacknowledged_ = 0;
}

}  // namespace farpage::rdma::verbs
