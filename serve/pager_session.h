// PagerSession: a connection to the pager of this host, for one program.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "serve/pager_messages.h"

namespace farpage::serve {

// Threads: one.
class PagerSession {
 public:
  // kNotFound: nobody listens there. kDenied: this user may not use it. kTimedOut, of all calls but
  // finish(): it has not answered for 30 s.
  static Result<PagerSession> connect(const std::string& path);

  // The pager serves the processes that hand their memory over on this listening socket. kConflict,
  // kExhausted, kInvalid: it refuses, with the reason.
  Status begin(const BeginRun& run, int handover_listener);
  // Blocks until all processes have ended. kUnavailable: the pager has ended.
  Result<RunReport> finish(int exit_status);
  Result<PagerStatus> status();
  // The pager has begun to go on with another binary.
  Status upgrade(const Upgrade& upgrade);

 private:
  PagerSession(Fd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}
  Result<std::string> ask(const PagerRequest& request, int descriptor = -1);
  Result<std::string> read_line();

  Fd socket_;
  std::string path_;
  std::string received_;
};

}  // namespace farpage::serve
