// Transport over verbs: devices are opened once and shared by the channels on them.
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
    std::unique_ptr<AsyncEvents> events;
  };
  Result<std::shared_ptr<const Device>> device_named(const std::string& name);

  const std::shared_ptr<const VerbsLibrary> library_;
  const VerbsOptions options_;
  Mutex mutex_;
  std::map<std::string, OpenDevice> devices_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::verbs
