// A line that `farpage run` or `farpage upgrade` sends to a pager.
#include <string_view>

#include "serve/pager_messages.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace farpage::serve;  // NOLINT(google-build-using-namespace): request_from_line
  const auto request =
      request_from_line(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!request) return 0;
  const std::string line = to_line(*request);
  const auto again = request_from_line(std::string_view(line).substr(0, line.size() - 1));
  FUZZ_EXPECT(again.has_value() && to_line(*again) == line);
  return 0;
}
