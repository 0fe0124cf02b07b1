// Goes on in the background once a piece of work has begun.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace farpage::cli {

// Has a child of this process do the work, in a session of its own, with no terminal and its
// messages at the end of the file `log`. `work` calls what it is given when it has begun well:
// this process then returns 0. Before that it waits, and returns the status that the child ends
// with. It prints the messages up to then. Call it before any thread starts.
//
// `log` empty: does the work here, and returns its status.
Result<int> run_in_background(
    const std::string& log,
    const std::function<Result<int>(const std::function<void()>& begun)>& work);

}  // namespace farpage::cli
