// The environment of a measurement, printed with every result.
#pragma once

#include <string>

namespace farpage::bench {

struct Environment {
  std::string host;
  std::string processor;  // model name of the first CPU
  unsigned cpus = 0;      // that this process may use
  std::string kernel;     // release
  std::string load;       // the three load averages
  std::string commit;     // of this program; given by the caller
  std::string build_type;
  std::string date;     // UTC, ISO 8601
  std::string command;  // the command line of this process
};

// Without commit and build_type, which the caller sets.
Environment observe_environment();

}  // namespace farpage::bench
