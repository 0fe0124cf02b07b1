// verbs.h for a build without libibverbs' headers.
#include "rdma/verbs/verbs.h"

namespace farpage::rdma {
namespace {

tl::unexpected<Error> absent() {
  return fail(ErrorCode::kUnsupported,
              "built without libibverbs headers (install libibverbs-dev and build again)");
}

}  // namespace

bool built_with_verbs() {
  return false;
}

Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& /*options*/) {
  return absent();
}

Result<std::unique_ptr<MemoryHost>> make_verbs_memory_host(const VerbsHostOptions& /*options*/) {
  return absent();
}

Result<std::vector<DeviceReport>> list_devices() {
  return absent();
}

}  // namespace farpage::rdma
