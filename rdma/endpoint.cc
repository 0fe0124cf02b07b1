#include "rdma/endpoint.h"

#include <arpa/inet.h>

namespace farpage::rdma {

std::string_view to_string(TransportKind kind) {
  switch (kind) {
    case TransportKind::kVerbs:
      return "verbs";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kLoop:
      return "loop";
  }
  return "unknown";
}

std::optional<TransportKind> transport_kind_from(std::string_view name) {
  for (const TransportKind kind :
       {TransportKind::kVerbs, TransportKind::kShm, TransportKind::kTcp, TransportKind::kLoop}) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

bool is_gid(std::string_view text) {
  in6_addr address{};
  if (text.size() >= INET6_ADDRSTRLEN) return false;
  // inet_pton stops at a NUL, which would let anything follow one.
  if (text.find('\0') != std::string_view::npos) return false;
  return ::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

}  // namespace farpage::rdma
