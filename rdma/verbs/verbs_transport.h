// Transport over verbs: devices are opened once and shared by the channels on them. A device stays
// open until the transport and all of its channels are gone.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "rdma/transport.h"
#include "rdma/verbs/async_events.h"
#include "rdma/verbs/resources.h"
#include "rdma/verbs/verbs.h"
#include "rdma/verbs/verbs_library.h"

namespace farpage::rdma::verbs {

// Threads: any. connect() registers the channel's buffer, which pins it, and blocks in the
// exchange; the lock is held only while a device is opened.
class VerbsTransport final : public Transport {
 public:
  VerbsTransport(std::shared_ptr<const VerbsLibrary> library, VerbsOptions options)
      : library_(std::move(library)), options_(std::move(options)) {}

  TransportKind kind() const override { return TransportKind::kVerbs; }
  // kInvalid names a wrong option.
  Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                           const ChannelOptions& options,
                                           const QueuePairExchange& exchange) override;

 private:
  struct OpenDevice {
    std::shared_ptr<const Device> device;
    std::unique_ptr<AsyncEvents> events;  // reads and logs them, so that their queue never fills
  };
  // The open one, or opens it.
  Result<std::shared_ptr<const Device>> device_named(const std::string& name);

  const std::shared_ptr<const VerbsLibrary> library_;
  const VerbsOptions options_;
  Mutex mutex_;
  std::map<std::string, OpenDevice> devices_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::verbs
