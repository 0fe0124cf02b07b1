#include "rdma/endpoint.h"

#include <arpa/inet.h>

#include <array>
#include <cinttypes>
#include <cstdio>

namespace farpage::rdma {
namespace {
constexpr size_t kKeyDigits = 40;
}  // namespace

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
    case TransportKind::kFile:
      return "file";
  }
  return "unknown";
}

std::string names_of(const std::vector<TransportKind>& kinds) {
  std::string names;
  for (const TransportKind kind : kinds) {
    names += names.empty() ? "" : ",";
    names += to_string(kind);
  }
  return names;
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
  // inet_pton stops at a NUL and would accept any text after it.
  if (text.find('\0') != std::string_view::npos) return false;
  return ::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

std::string to_text(const RemoteKey& key) {
  std::array<char, kKeyDigits + 1> text{};
  (void)std::snprintf(text.data(), text.size(), "%08" PRIx32 "%016" PRIx64 "%016" PRIx64, key.value,
                      key.secret[0], key.secret[1]);
  return {text.data(), kKeyDigits};
}

std::optional<RemoteKey> remote_key_from(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != kKeyDigits || text.find_first_not_of(kDigits) != std::string_view::npos)
    return std::nullopt;
  const auto number = [&](size_t first, size_t digits) {
    uint64_t value = 0;
    for (const char digit : text.substr(first, digits)) value = value * 16 + kDigits.find(digit);
    return value;
  };
  return RemoteKey{static_cast<uint32_t>(number(0, 8)), {number(8, 16), number(24, 16)}};
}

}  // namespace farpage::rdma
