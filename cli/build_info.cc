#include "cli/build_info.h"

#include "cli/git_commit.h"  // generated
#include "rdma/verbs/verbs.h"

namespace farpage::cli {

BuildInfo build_info() {
  BuildInfo build{FARPAGE_VERSION, FARPAGE_GIT_COMMIT, FARPAGE_BUILD_TYPE, {"shm", "tcp"}};
  if (rdma::built_with_verbs()) build.transports.insert(build.transports.begin(), "verbs");
  return build;
}

}  // namespace farpage::cli
