// PagerSession: a connection to a pager, for one program.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "serve/pager_messages.h"

namespace farpage::serve {

// Threads: one.
class PagerSession {
 public:
  // kNotFound: nobody listens there. kDenied: this user may not use it. kTimedOut, of all calls but
  // finish(): it has not answered for 30 s. `subcommand` is for messages: "pager", or "serve",
  // which answers status() and upgrade(), one of them on a connection.
  static Result<PagerSession> connect(const std::string& path,
                                      const std::string& subcommand = "pager");
  // Of a pager that serves this one connection (HostPager::serve_one()). Its end closes the
  // connection, so calls wait for nothing else.
  static PagerSession over(Fd socket);

  // The pager serves the processes that hand their memory over on this listening socket. kConflict,
  // kExhausted, kInvalid: it refuses, with the reason. This and the others but finish() ask again
  // each second: an engine that is killed may have read the question.
  Status begin(const BeginRun& run, int handover_listener);
  // Blocks until all processes have ended. kUnavailable: the pager has ended.
  Result<RunReport> finish(int exit_status);
  Result<PagerStatus> status();
  // Of the program that has begun.
  Result<RunReport> report();
  // The pager has begun to go on with another binary.
  Status upgrade(const Upgrade& upgrade);

 private:
  PagerSession(Fd socket, std::string pager, Milliseconds patience)
      : socket_(std::move(socket)), pager_(std::move(pager)), patience_(patience) {}
  Result<std::string> ask(const PagerRequest& request, const char* member, int descriptor = -1);
  Status send(const PagerRequest& request, int descriptor = -1);
  // nullopt: none has come in time.
  Result<std::optional<std::string>> read_answer(const char* member, Milliseconds patience);
  Result<bool> receive(Milliseconds patience);

  Fd socket_;
  std::string pager_;  // as messages call it
  Milliseconds patience_;
  std::string received_;
};

}  // namespace farpage::serve
