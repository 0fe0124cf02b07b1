// A request for a socket: its names can be parts of a path.
#include <string_view>

#include "http/json_reader.h"
#include "snapshot/wire.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto request = farpage::snapshot::decode_socket_request(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!request) return 0;
  FUZZ_EXPECT(farpage::http::is_name(request->image.value));
  FUZZ_EXPECT(farpage::http::is_name(request->socket));
  return 0;
}
