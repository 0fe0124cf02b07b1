#include "rdma/transport.h"

namespace farpage::rdma {

std::string_view to_string(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return "ok";
    case CompletionStatus::kRemoteAccess:
      return "remote_access";
    case CompletionStatus::kLocalError:
      return "local_error";
    case CompletionStatus::kPeerGone:
      return "peer_gone";
    case CompletionStatus::kTimedOut:
      return "timed_out";
    case CompletionStatus::kFlushed:
      return "flushed";
  }
  return "unknown";
}

std::string_view to_string(PollMode mode) {
  switch (mode) {
    case PollMode::kAdaptive:
      return "adaptive";
    case PollMode::kBusy:
      return "busy";
    case PollMode::kEvent:
      return "event";
  }
  return "unknown";
}

std::optional<PollMode> poll_mode_from(std::string_view name) {
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    if (name == to_string(mode)) return mode;
  }
  return std::nullopt;
}

}  // namespace farpage::rdma
