#include "rdma/transport_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "rdma/shm/shm.h"
#include "rdma/tcp/tcp.h"

namespace farpage::rdma {

Result<TransportChoice> parse_transports(const std::string& text, const std::string& field) {
  TransportChoice choice;
  if (text == "auto") {
    choice.automatic = true;
    choice.kinds = {TransportKind::kVerbs, TransportKind::kShm, TransportKind::kTcp};
    return choice;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    const auto kind = transport_kind_from(name);
    if (!kind || *kind == TransportKind::kLoop)
      return fail(ErrorCode::kInvalid,
                  fmt::format("{}: '{}' is not one of verbs, shm, tcp; write auto or a list such "
                              "as tcp,shm",
                              field, name));
    if (std::find(choice.kinds.begin(), choice.kinds.end(), *kind) != choice.kinds.end())
      return fail(ErrorCode::kInvalid, fmt::format("{}: {} is listed twice", field, name));
    choice.kinds.push_back(*kind);
    at = end + 1;
  }
  return choice;
}

Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportChoice& choice,
                                                                const VerbsOptions& verbs_options) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (const TransportKind kind : choice.kinds) {
    switch (kind) {
      case TransportKind::kVerbs: {
        Result<std::unique_ptr<Transport>> verbs = make_verbs_transport(verbs_options);
        if (verbs) {
          transports.push_back(std::move(*verbs));
        } else if (!choice.automatic) {
          return tl::unexpected(verbs.error());
        } else {
          log::debug("transports: no_verbs reason=\"{}\"", verbs.error().message());
        }
        break;
      }
      case TransportKind::kShm:
        transports.push_back(make_shm_transport());
        break;
      case TransportKind::kTcp:
        transports.push_back(make_tcp_transport());
        break;
      case TransportKind::kLoop:
      case TransportKind::kFile:
        break;  // parse_transports refuses them
    }
  }
  return transports;
}

}  // namespace farpage::rdma
