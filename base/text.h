// Text from others, before it is printed or logged.
#pragma once

#include <algorithm>
#include <string>

namespace farpage {

// A line break could forge a line of a log, an escape could change what a terminal shows.
constexpr bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

// Control characters become question marks.
inline std::string printable(std::string text) {
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

}  // namespace farpage
