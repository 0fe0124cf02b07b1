// The numbers that tell borrowers, and the channels of one borrower, apart.
#pragma once

#include <cstdint>

namespace farpage::rdma {

// The sessions of one borrowing process share the upper half of their numbers: its session group.
// 0: no group. A group is random, so two processes share one only by accident; then a region is
// kept until both are gone.
using SessionGroup = uint32_t;
constexpr SessionGroup session_group_of(uint64_t session) {
  return static_cast<SessionGroup>(session >> 32);
}

// Random, and never 0. Threads: any.
SessionGroup new_session_group();
uint64_t new_session(SessionGroup group);

}  // namespace farpage::rdma
