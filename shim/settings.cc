#include "shim/settings.h"

#include <stdlib.h>
#include <string.h>

#include "shim/report.h"
#include "shim/syscalls.h"
#include "uffd/handover.h"

namespace farpage::shim {
namespace {

void read_number_or_exit(const char* name, uint64_t least, uint64_t most, uint64_t& value) {
  const char* text = getenv(name);
  if (text == nullptr) {
    return;
  }
  if (!parse_decimal(text, value) || value < least || value > most) {
    Report()
        .text(name)
        .text("=")
        .text(text)
        .text(" is not a decimal number of bytes from ")
        .number(least)
        .text(" to ")
        .number(most)
        .write_and_exit();
  }
}

}  // namespace

bool parse_decimal(const char* text, uint64_t& value) {
  value = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9'; ++at) {
    const uint64_t digit = static_cast<uint64_t>(*at - '0');
    if (value > (UINT64_MAX - digit) / 10) {
      return false;
    }
    value = value * 10 + digit;
  }
  return at != text && *at == '\0';
}

Settings read_settings_or_exit() {
  Settings settings;
  settings.socket_path = getenv(uffd::handover::kSocketVariable);
  if (settings.socket_path == nullptr || settings.socket_path[0] == '\0') {
    settings.socket_path = nullptr;
    return settings;
  }
  read_number_or_exit(uffd::handover::kWindowVariable, kPageBytes, Settings::kMaxWindowBytes,
                      settings.window_bytes);
  settings.window_bytes = round_up_to_page(settings.window_bytes);
  read_number_or_exit(uffd::handover::kMinimumVariable, 1, Settings::kMaxWindowBytes,
                      settings.minimum_bytes);
  const char* fork = getenv(uffd::handover::kForkVariable);
  settings.share_at_fork = fork != nullptr && strcmp(fork, uffd::handover::kForkShare) == 0;
  return settings;
}

}  // namespace farpage::shim
