// ProgramPager: the pager of one program, which the same `farpage run` has started.
//
// It is two processes: a holder (serve/holder.h), which is a child of this one, and the engine. The
// engine may be killed; a successor goes on. The program ends with the holder.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>

#include "base/result.h"
#include "cli/run_settings.h"
#include "serve/pager_session.h"

namespace farpage::cli {

// Threads: one, the only one of its process at start(), with the signals blocked that it relays to
// the program. The destructor closes the session and waits for the end.
class ProgramPager {
 public:
  // settings.coordinator is not empty.
  static Result<ProgramPager> start(const RunSettings& settings,
                                    const pager::PagerOptions& options);
  ProgramPager(ProgramPager&& other) noexcept
      : holder_(std::exchange(other.holder_, -1)), session_(std::move(other.session_)) {}
  ProgramPager& operator=(ProgramPager&&) = delete;
  ~ProgramPager();

  serve::PagerSession& session() { return *session_; }
  // Closes the session. Returns the exit status of the pager, which has printed why it failed.
  int wait();

 private:
  ProgramPager(pid_t holder, serve::PagerSession session)
      : holder_(holder), session_(std::move(session)) {}

  pid_t holder_ = -1;
  std::optional<serve::PagerSession> session_;
};

}  // namespace farpage::cli
