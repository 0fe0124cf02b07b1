// The name under which a process reads images.
#pragma once

#include <unistd.h>

#include <string>

#include "base/host.h"

namespace farpage::image {

// "HOST-PID-RANDOM", of the characters of a name (http/json_reader.h).
inline std::string new_reader_name() {
  std::string host = host_name().substr(0, 32);
  for (char& c : host) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '.' || c == '-';
    if (!is_plain) c = '_';
  }
  return host + "-" + std::to_string(::getpid()) + "-" + std::to_string(random_u32());
}

}  // namespace farpage::image
