// The protocol between a test and its memory node process: one line each way.
#pragma once

#include <istream>
#include <ostream>
#include <sstream>
#include <string>

#include "rdma/endpoint.h"

namespace farpage::lab {

inline std::string to_text(const rdma::QueuePairEndpoint& endpoint) {
  std::ostringstream text;
  text << endpoint.qpn << ' ' << endpoint.psn << ' ' << endpoint.lid << ' '
       << (endpoint.gid.empty() ? "-" : endpoint.gid) << ' ' << int{endpoint.gid_index} << ' '
       << endpoint.is_global << ' ' << endpoint.mtu_bytes << ' ' << endpoint.max_rd_atomic << ' '
       << endpoint.max_dest_rd_atomic << ' ' << endpoint.session;
  return text.str();
}

inline bool read_endpoint(std::istream& text, rdma::QueuePairEndpoint& endpoint) {
  int gid_index = 0;
  text >> endpoint.qpn >> endpoint.psn >> endpoint.lid >> endpoint.gid >> gid_index >>
      endpoint.is_global >> endpoint.mtu_bytes >> endpoint.max_rd_atomic >>
      endpoint.max_dest_rd_atomic >> endpoint.session;
  endpoint.gid_index = static_cast<uint8_t>(gid_index);
  if (endpoint.gid == "-") endpoint.gid.clear();
  return !text.fail();
}

}  // namespace farpage::lab
