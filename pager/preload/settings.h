// What `farpage run` tells the shim, by the environment (uffd/handover.h).
#pragma once

#include <stdint.h>

namespace farpage::preload {

struct Settings {
  static constexpr uint64_t kDefaultWindowBytes = uint64_t{64} << 30;
  static constexpr uint64_t kMaxWindowBytes = uint64_t{16} << 40;
  static constexpr uint64_t kDefaultMinimumBytes = 128 << 10;

  const char* socket_path = nullptr;  // null: farpage has no part in this process
  uint64_t window_bytes = kDefaultWindowBytes;
  uint64_t minimum_bytes = kDefaultMinimumBytes;  // smaller mmaps stay local
  bool share_at_fork = false;                     // ask for fork events
};

// A decimal number without sign, blanks or suffix. false when it is none or too large.
bool parse_decimal(const char* text, uint64_t& value);

// Reads the environment; a bad value is said on standard error and ends the process.
Settings read_settings_or_exit();

}  // namespace farpage::preload
