#include "snapshot/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/strong.h"
#include "base/unix_socket.h"
#include "http/json_reader.h"

namespace farpage::snapshot {
namespace {

// Of user space with five levels of page tables.
constexpr uint64_t kMaxAddress = uint64_t{1} << 56;
constexpr uint64_t kMaxPageBytes = uint64_t{1} << 30;

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\0';
}

// 0: the field is not there.
uint64_t page_bytes_of(http::JsonReader& reader) {
  if (reader.has("page_size")) return reader.number("page_size", 1, kMaxPageBytes);
  const uint64_t field = reader.number_or("page_size_kib", 1, kMaxPageBytes, 0);
  return field < kPageBytes ? field << 10 : field;
}

GuestRegion read_region(http::JsonReader& reader) {
  GuestRegion region;
  region.address = reader.number("base_host_virt_addr", kPageBytes, kMaxAddress);
  region.bytes = reader.number("size", kPageBytes, kMaxAddress);
  region.offset = reader.number("offset", 0, kMaxAddress);
  const uint64_t page_bytes = page_bytes_of(reader);
  if (page_bytes != 0) region.page_bytes = page_bytes;
  const uint64_t unit = region.page_bytes == kHugePageBytes ? kHugePageBytes : kPageBytes;
  const auto whole_pages = [&](const char* key, uint64_t value) {
    if (reader.ok() && value % unit != 0)
      reader.refuse(key, fmt::format("must be whole pages of {} KiB", unit >> 10));
  };
  whole_pages("base_host_virt_addr", region.address);
  whole_pages("size", region.bytes);
  whole_pages("offset", region.offset);
  return region;
}

bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

Status check_apart(const std::vector<GuestRegion>& regions) {
  for (size_t i = 0; i < regions.size(); ++i)
    for (size_t j = i + 1; j < regions.size(); ++j)
      if (overlap(regions[i].address, regions[i].bytes, regions[j].address, regions[j].bytes) ||
          overlap(regions[i].offset, regions[i].bytes, regions[j].offset, regions[j].bytes))
        return fail(ErrorCode::kInvalid, "two regions overlap");
  return {};
}

}  // namespace

Result<std::vector<GuestRegion>> decode_regions(std::string_view message) {
  if (message.size() > kMaxMessageBytes)
    return fail(ErrorCode::kExhausted, "the message is too long");
  // The reader of bodies takes one object; it refuses keys that are given twice, and deep nesting.
  FARPAGE_TRY(document, http::parse_json_object(fmt::format("{{\"regions\":{}}}", message)));
  http::JsonReader reader(*document, http::UnknownFields::kIgnore);
  std::vector<GuestRegion> regions;
  reader.each("regions", kMaxRegions,
              [&](http::JsonReader& entry) { regions.push_back(read_region(entry)); });
  FARPAGE_TRY_VOID(reader.finish());
  if (regions.empty()) return fail(ErrorCode::kInvalid, "the message names no region");
  for (const GuestRegion& region : regions) {
    if (region.page_bytes != kPageBytes && region.page_bytes != kHugePageBytes)
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("pages of {} bytes are not served: 4 KiB or 2 MiB", region.page_bytes));
    if (region.page_bytes != regions.front().page_bytes)
      return fail(ErrorCode::kUnsupported, "regions with different pages are not served");
  }
  FARPAGE_TRY_VOID(check_apart(regions));
  std::sort(regions.begin(), regions.end(),
            [](const GuestRegion& a, const GuestRegion& b) { return a.address < b.address; });
  return regions;
}

Status check_region(const GuestRegion& region, uint64_t pages, const std::string& image) {
  if (region.offset + region.bytes <= pages << kPageShift) return {};
  return fail(ErrorCode::kInvalid,
              fmt::format("a region ends at offset {}, and image '{}' has {} bytes",
                          region.offset + region.bytes, image, pages << kPageShift));
}

Result<SocketRequest> decode_socket_request(std::string_view request) {
  FARPAGE_TRY(document, http::parse_json_object(request));
  http::JsonReader reader(*document, http::UnknownFields::kRefuse);
  SocketRequest decoded{.image = ImageId{reader.name("image")}, .socket = reader.name("socket")};
  FARPAGE_TRY_VOID(reader.finish());
  return decoded;
}

bool ArrayEnd::take(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [this](char c) { return take(c); });
}

bool ArrayEnd::take(char c) {
  if (found_) return is_blank(c);
  ++length_;
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return true;
  }
  if (depth_ == 0) {
    if (c == '[') {
      depth_ = 1;
      return true;
    }
    return is_blank(c) && c != '\0';
  }
  if (c == '"') in_string_ = true;
  if (c == '[' || c == '{') return ++depth_ <= kMaxDepth;
  if (c == ']' || c == '}') found_ = --depth_ == 0;
  return true;
}

Handover::Handover(Fd socket, const ucred& peer) : socket_(std::move(socket)), peer_(peer) {
  const int from = 0;  // each look begins where the last one has ended
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from);
}

Result<bool> Handover::read() {
  // With room for more than is allowed: so what came with a descriptor is seen at once, and the
  // descriptor is given only once.
  const auto part = std::make_unique<std::array<std::byte, kMaxMessageBytes + 1>>();
  while (true) {
    ReceivedBytes got = receive_with_descriptor(socket_.get(), *part, MSG_DONTWAIT | MSG_PEEK);
    if (got.count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return fail_errno("reading the message of the VMM");
    }
    if (got.count == 0)
      return fail(ErrorCode::kUnavailable,
                  fmt::format("the VMM closed the socket after {} bytes{}", text_.size(),
                              descriptor_.valid() ? "" : ", without a descriptor"));
    if (got.descriptor.valid()) {
      if (descriptor_.valid()) return fail(ErrorCode::kInvalid, "it sent more than one descriptor");
      descriptor_ = std::move(got.descriptor);
    }
    const std::string_view bytes(reinterpret_cast<const char*>(part->data()),
                                 static_cast<size_t>(got.count));
    if (text_.size() + bytes.size() > kMaxMessageBytes)
      return fail(ErrorCode::kExhausted,
                  fmt::format("its message has more than {} bytes", kMaxMessageBytes));
    text_ += bytes;
    if (is_request()) return false;
    if (!end_.take(bytes)) return fail(ErrorCode::kInvalid, "its message is no array of regions");
    if (end_.found() && descriptor_.valid()) return true;
  }
}

}  // namespace farpage::snapshot
