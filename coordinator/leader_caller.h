// LeaderCaller: calls the coordinator; of several ones, the one that leads.
//
// A call goes to the coordinator that answered last. When that one is not reached, or answers that
// it does not lead, the call goes on to the one that it names, if that is in the list, or to the
// next. When all were asked, it waits a moment and asks again, until its time is over. Connections
// are kept: when that machine is off since the last call, one call fails with kTimedOut.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "http/caller.h"

namespace farpage::coordinator {

// Threads: any.
class LeaderCaller {
 public:
  // `urls`: one, or several with commas between. `token`: for all of them. kInvalid.
  static Result<std::unique_ptr<LeaderCaller>> create(const std::string& urls,
                                                      const std::string& token);

  // The body of a 2xx answer. Empty `body`: the request has none. kUnavailable: no coordinator was
  // reached that leads, and nothing was executed; or it is what the one that leads answers, as when
  // its store cannot be written. kTimedOut: no complete answer: the request may have
  // been executed, and is not sent to another one. Else the failure in the problem+json.
  Result<std::string> call(const char* method, const std::string& path, const std::string& body,
                           Milliseconds timeout) const;

 private:
  explicit LeaderCaller(std::vector<http::Caller> coordinators)
      : coordinators_(std::move(coordinators)) {}
  size_t after(size_t index) const { return (index + 1) % coordinators_.size(); }
  size_t named(const std::string& url, size_t otherwise) const;

  const std::vector<http::Caller> coordinators_;
  mutable std::atomic<size_t> latest_{0};
};

}  // namespace farpage::coordinator
