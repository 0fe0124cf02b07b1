// ProgramPager: the pager of one program, which the same `farpage run` has started.
//
// With an embedded cluster, where the settings name no coordinator.
//
// It is two processes: a holder (serve/holder.h), which is a child of this one, and the engine. The
// engine may be killed; a successor goes on. The program ends with the holder.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>

#include "base/result.h"
#include "cli/embedded_cluster.h"
#include "cli/run_settings.h"
#include "serve/pager_session.h"

namespace farpage::cli {

// Threads: one, the only one of its process at start(), with the signals blocked that it relays to
// the program. The destructor closes the session and waits for the end.
class ProgramPager {
 public:
  static Result<ProgramPager> start(RunSettings settings, const pager::PagerOptions& options);
  ProgramPager(ProgramPager&& other) noexcept
      : cluster_(std::move(other.cluster_)),
        holder_(std::exchange(other.holder_, -1)),
        session_(std::move(other.session_)) {}
  ProgramPager& operator=(ProgramPager&&) = delete;
  ~ProgramPager();

  serve::PagerSession& session() { return *session_; }
  // Closes the session. Returns the exit status of the pager, which has printed why it failed.
  int wait();

 private:
  ProgramPager(std::optional<EmbeddedCluster> cluster, pid_t holder, serve::PagerSession session)
      : cluster_(std::move(cluster)), holder_(holder), session_(std::move(session)) {}

  std::optional<EmbeddedCluster> cluster_;
  pid_t holder_ = -1;
  std::optional<serve::PagerSession> session_;
};

}  // namespace farpage::cli
