// Settings that `farpage run` passes to the shim in the environment (uffd/handover.h).
#pragma once

#include <stdint.h>

namespace farpage::shim {

struct Settings {
  static constexpr uint64_t kDefaultWindowBytes = uint64_t{64} << 30;
  static constexpr uint64_t kMaxWindowBytes = uint64_t{16} << 40;
  static constexpr uint64_t kDefaultMinimumBytes = 128 << 10;

  const char* socket_path = nullptr;  // null: this process does not use farpage
  uint64_t window_bytes = kDefaultWindowBytes;
  uint64_t minimum_bytes = kDefaultMinimumBytes;  // smaller mmaps stay local
  bool share_at_fork = false;                     // ask for fork events
};

// A decimal number without sign, blanks or suffix. false: not a number, or too large.
bool parse_decimal(const char* text, uint64_t& value);

// Reads the environment. Reports a bad value on standard error and exits.
Settings read_settings_or_exit();

}  // namespace farpage::shim
