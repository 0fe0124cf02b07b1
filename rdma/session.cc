#include "rdma/session.h"

#include "base/host.h"

namespace farpage::rdma {

SessionGroup new_session_group() {
  return random_u32() | 1;
}

uint64_t new_session(SessionGroup group) {
  return (uint64_t{group} << 32) | random_u32() | 1;
}

}  // namespace farpage::rdma
