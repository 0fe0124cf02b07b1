#include "share/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strong.h"
#include "http/json_reader.h"

namespace farpage::share {
namespace {

// Of user space with five levels of page tables.
constexpr uint64_t kMaxAddress = uint64_t{1} << 56;
constexpr uint64_t kMaxPageBytes = uint64_t{1} << 30;

uffd::SharedClaim read_region(http::JsonReader& reader, size_t memories) {
  uffd::SharedClaim claim;
  claim.address = reader.number("base_host_virt_addr", kPageBytes, kMaxAddress);
  claim.bytes = reader.number("size", kPageBytes, kMaxAddress);
  claim.offset = reader.number("offset", 0, kMaxAddress);
  claim.file = reader.number_or("memory", 0, kMaxMemories - 1, 0);
  const auto whole_pages = [&](const char* key, uint64_t value) {
    if (reader.ok() && value % kPageBytes != 0) reader.refuse(key, "must be whole 4 KiB pages");
  };
  whole_pages("base_host_virt_addr", claim.address);
  whole_pages("size", claim.bytes);
  whole_pages("offset", claim.offset);
  if (reader.ok() && claim.file >= memories)
    reader.refuse("memory",
                  fmt::format("only {} memfds were sent, behind the userfaultfd", memories));
  return claim;
}

bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

Status check_apart(const std::vector<uffd::SharedClaim>& claims) {
  for (size_t i = 0; i < claims.size(); ++i)
    for (size_t j = i + 1; j < claims.size(); ++j) {
      const uffd::SharedClaim& a = claims[i];
      const uffd::SharedClaim& b = claims[j];
      if (overlap(a.address, a.bytes, b.address, b.bytes) ||
          (a.file == b.file && overlap(a.offset, a.bytes, b.offset, b.bytes)))
        return fail(ErrorCode::kInvalid,
                    fmt::format("field 'regions[{}]': overlaps regions[{}]: send each part of the "
                                "memory once",
                                j, i));
    }
  return {};
}

std::string line_of(const nlohmann::json& message) {
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<std::vector<uffd::SharedClaim>> decode_regions(std::string_view line, size_t memories) {
  if (line.size() > kMaxMessageBytes) return fail(ErrorCode::kExhausted, "the message is too long");
  // The reader takes an object; it refuses keys that are given twice, and deep nesting.
  FARPAGE_TRY(document, http::parse_json_object(fmt::format("{{\"regions\":{}}}", line)));
  if (document->size() != 1)
    return fail(ErrorCode::kInvalid, "the message is not one JSON array of regions");
  http::JsonReader reader(*document, http::UnknownFields::kIgnore);
  std::vector<uffd::SharedClaim> claims;
  uint64_t page_bytes = kPageBytes;
  reader.each("regions", kMaxRegions, [&](http::JsonReader& entry) {
    page_bytes = std::max(page_bytes, entry.number_or("page_size", 1, kMaxPageBytes, kPageBytes));
    claims.push_back(read_region(entry, memories));
  });
  FARPAGE_TRY_VOID(reader.finish());
  if (claims.empty()) return fail(ErrorCode::kInvalid, "field 'regions': none was sent");
  if (page_bytes != kPageBytes)
    return fail(ErrorCode::kUnsupported,
                fmt::format("field 'regions': pages of {} bytes are not served: use memory without "
                            "huge pages",
                            page_bytes));
  FARPAGE_TRY_VOID(check_apart(claims));
  return claims;
}

std::string accepted_line(uint64_t pages, size_t processes) {
  return line_of({{"accepted", {{"pages", pages}, {"processes", processes}}}});
}

std::string released_line() {
  return line_of({{"released", nlohmann::json::object()}});
}

std::string error_line(const Error& error) {
  return line_of({{"error",
                   {{"code", std::string(to_string(error.code))},
                    {"field", http::field_of(error)},
                    {"text", error.message()}}}});
}

}  // namespace farpage::share
