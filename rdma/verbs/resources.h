// Owners of libibverbs' objects, each with its named factory. Each owner also holds the device, so
// members in creation order are destroyed in the right order.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "rdma/verbs/verbs_library.h"

namespace farpage::rdma::verbs {

// The devices present, for as long as the list lives.
class DeviceList {
 public:
  explicit DeviceList(const VerbsLibrary& library);
  ~DeviceList();
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  std::span<ibv_device* const> all() const { return {list_, count_}; }

 private:
  const VerbsLibrary& library_;
  ibv_device** list_ = nullptr;
  size_t count_ = 0;
};

// An opened device. Threads: any.
class Device {
 public:
  static Result<std::shared_ptr<const Device>> open(
      const std::shared_ptr<const VerbsLibrary>& library, const std::string& name);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const VerbsLibrary& library() const { return *library_; }
  ibv_context* context() const { return context_; }
  std::string name() const { return context_->device->name; }

 private:
  Device(std::shared_ptr<const VerbsLibrary> library, ibv_context* context)
      : library_(std::move(library)), context_(context) {}

  std::shared_ptr<const VerbsLibrary> library_;
  ibv_context* context_;
};

// Limits which rkeys a peer can use: the device refuses a READ or WRITE whose key belongs to
// another domain than its queue pair (InfiniBand Architecture 1.4, 10.2.3). Threads: any.
class ProtectionDomain {
 public:
  static Result<std::shared_ptr<const ProtectionDomain>> create(
      std::shared_ptr<const Device> device);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;

  const Device& device() const { return *device_; }
  ibv_pd* get() const { return domain_; }

 private:
  ProtectionDomain(std::shared_ptr<const Device> device, ibv_pd* domain)
      : device_(std::move(device)), domain_(domain) {}

  std::shared_ptr<const Device> device_;
  ibv_pd* domain_;
};

// Memory that the device may access; pinned as long as this lives. After destruction no access with
// its key succeeds and none is in progress.
class Registration {
 public:
  // kExhausted names the limit on locked memory.
  static Result<Registration> create(std::shared_ptr<const ProtectionDomain> domain,
                                     std::span<std::byte> bytes, int access);
  Registration(Registration&& other) noexcept;
  Registration& operator=(Registration&&) = delete;
  ~Registration();

  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  Registration(std::shared_ptr<const ProtectionDomain> domain, ibv_mr* region)
      : domain_(std::move(domain)), region_(region) {}

  std::shared_ptr<const ProtectionDomain> domain_;
  ibv_mr* region_;
};

// A completion queue with its event channel (non-blocking). Threads: one at a time.
class CompletionQueue {
 public:
  static Result<CompletionQueue> create(std::shared_ptr<const Device> device, uint32_t entries);
  CompletionQueue(CompletionQueue&& other) noexcept;
  CompletionQueue& operator=(CompletionQueue&&) = delete;
  ~CompletionQueue();

  ibv_cq* get() const { return queue_; }
  // Work completions stored, negative on a broken device. Never blocks.
  int poll(std::span<ibv_wc> completions) {
    return ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
  }
  // Makes the next completion make event_fd() readable. Earlier completions may not: poll again
  // after arming, then wait.
  bool arm() { return ibv_req_notify_cq(queue_, 0) == 0; }
  int event_fd() const { return channel_->fd; }
  // Consumes the events that made event_fd() readable.
  void take_events();

 private:
  CompletionQueue(std::shared_ptr<const Device> device, ibv_comp_channel* channel)
      : device_(std::move(device)), channel_(channel) {}
  void acknowledge();

  std::shared_ptr<const Device> device_;
  ibv_comp_channel* channel_;
  ibv_cq* queue_ = nullptr;
  unsigned unacknowledged_ = 0;
};

// Makes reads from a descriptor of libibverbs return at once.
Status set_nonblocking(int fd, std::string_view what);

}  // namespace farpage::rdma::verbs
