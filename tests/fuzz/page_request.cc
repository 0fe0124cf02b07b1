// What a client of a page server sends: the requests are the same however the bytes are cut, keep
// their promises, and each has an answer of its form.
#include "criu/page_request.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/strong.h"
#include "tests/fuzz/fuzz_target.h"

using farpage::criu::encode_answer;
using farpage::criu::kMaxRequestPages;
using farpage::criu::PageRequest;
using farpage::criu::RequestReader;

namespace {

struct Read {
  std::vector<PageRequest> requests;
  bool failed = false;
};

Read read_in_parts(std::span<const std::byte> bytes, size_t part) {
  RequestReader reader;
  Read all;
  while (!bytes.empty() && !all.failed) {
    const auto now = bytes.first(std::min(part, bytes.size()));
    bytes = bytes.subspan(now.size());
    all.failed = !reader.add(now);
    while (const auto request = reader.next()) {
      all.requests.push_back(*request);
      FUZZ_EXPECT(reader.form().has_value());
      if (request->kind == PageRequest::Kind::kEnd) continue;
      FUZZ_EXPECT(request->pages > 0 && request->pages <= kMaxRequestPages);
      FUZZ_EXPECT(request->address % farpage::kPageBytes == 0);
      const size_t length = encode_answer(*reader.form(), *request).size();
      FUZZ_EXPECT(length == 24 || length == 32);
    }
  }
  return all;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const Read whole = read_in_parts(bytes, RequestReader::kMaxPartBytes);
  for (const size_t part : {1U, 7U, 24U, 33U}) {
    const Read parts = read_in_parts(bytes, part);
    FUZZ_EXPECT(parts.requests == whole.requests && parts.failed == whole.failed);
  }
  return 0;
}
