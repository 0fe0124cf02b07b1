#include "criu/pagemap.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>

#include "base/strong.h"

namespace farpage::criu {
namespace {

constexpr uint32_t kCommonMagic = 0x54564319;
constexpr uint32_t kPagemapMagic = 0x56084025;
// The messages have five numbers at most.
constexpr uint32_t kMaxRecordBytes = 4096;

// Numbers of fields: pagemap_head, pagemap_entry.
constexpr uint64_t kPagesId = 1;
constexpr uint64_t kVaddr = 1;
constexpr uint64_t kPages32 = 2;
constexpr uint64_t kOldInParent = 3;
constexpr uint64_t kFlags = 4;
constexpr uint64_t kPages64 = 5;
constexpr size_t kFields = 6;

// The numbers of a message, by the number of their field. Others are skipped.
struct Message {
  std::array<std::optional<uint64_t>, kFields> fields;
};

// Encoding of protobuf: a key is the number of a field and, in its low 3 bits, the type.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // nullopt: it is damaged.
  std::optional<Message> read() {
    Message message;
    while (!bytes_.empty()) {
      const auto key = varint();
      if (!key || *key >> 3 == 0) return std::nullopt;
      if (!field(*key >> 3, static_cast<uint32_t>(*key & 7), message)) return std::nullopt;
    }
    return message;
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = std::to_integer<uint64_t>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      if (shift == 63 && byte > 1) return std::nullopt;
      value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }
  bool skip(uint64_t bytes) {
    if (bytes > bytes_.size()) return false;
    bytes_ = bytes_.subspan(bytes);
    return true;
  }
  bool field(uint64_t number, uint32_t type, Message& message) {
    if (type == 1) return skip(8);
    if (type == 5) return skip(4);
    if (type != 0 && type != 2) return false;
    const auto value = varint();
    if (!value) return false;
    if (type == 2) return skip(*value);
    // Of a field that is there twice, the last one counts.
    if (number < kFields) message.fields[number] = *value;
    return true;
  }

  std::span<const std::byte> bytes_;
};

class MessageWriter {
 public:
  void add(uint64_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<std::byte>(value | 0x80));
    bytes_.push_back(static_cast<std::byte>(value));
  }
  std::vector<std::byte> bytes_;
};

uint32_t u32_at(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void add_u32(std::vector<std::byte>& bytes, uint32_t value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

void add_record(std::vector<std::byte>& bytes, const MessageWriter& message) {
  add_u32(bytes, static_cast<uint32_t>(message.bytes().size()));
  bytes.insert(bytes.end(), message.bytes().begin(), message.bytes().end());
}

// nullptr: nothing is wrong.
const char* problem_of(const Message& message, uint64_t after, PagemapRange& range) {
  const auto& fields = message.fields;
  if (!fields[kVaddr]) return "vaddr is missing";
  if (!fields[kPages32] && !fields[kPages64]) return "nr_pages is missing";
  range.address = *fields[kVaddr];
  range.pages = fields[kPages64] ? *fields[kPages64] : *fields[kPages32];
  range.flags = static_cast<uint32_t>(fields[kFlags].value_or(kPresent));
  if (fields[kOldInParent].value_or(0) != 0) range.flags |= kInParent;
  if (range.address % kPageBytes != 0) return "vaddr is not that of a page";
  if (range.address < after) return "vaddr is not behind the range before";
  // The count has 32 bits in most versions.
  if (range.pages == 0 || range.pages > UINT32_MAX) return "nr_pages is not 1 to 4294967295";
  if (range.address >= kMaxAddress || range.pages > (kMaxAddress - range.address) >> kPageShift)
    return "it ends behind the last address";
  if (fields[kFlags].value_or(0) > UINT32_MAX) return "flags have more than 32 bits";
  return nullptr;
}

}  // namespace

uint64_t PagemapRange::end() const {
  return address + (pages << kPageShift);
}

uint64_t Pagemap::present_pages() const {
  uint64_t pages = 0;
  for (const PagemapRange& range : ranges)
    if (range.is(kPresent)) pages += range.pages;
  return pages;
}

Result<Pagemap> decode_pagemap(std::span<const std::byte> file) {
  if (file.size() > kMaxPagemapBytes) return fail(ErrorCode::kInvalid, "it is larger than 256 MiB");
  if (file.size() < 8 || u32_at(file) != kCommonMagic || u32_at(file.subspan(4)) != kPagemapMagic)
    return fail(ErrorCode::kInvalid, "it is no pagemap of criu (1.3 or later)");
  Pagemap pagemap;
  uint64_t after = 0;
  size_t record = 0;
  for (size_t at = 8; at < file.size(); ++record) {
    const auto wrong = [&](const char* what) {
      return fail(ErrorCode::kInvalid, fmt::format("record {} at byte {}: {}", record, at, what));
    };
    const auto rest = file.subspan(at);
    if (rest.size() < sizeof(uint32_t)) return wrong("its length is cut off");
    const uint32_t length = u32_at(rest);
    if (length > kMaxRecordBytes) return wrong("it is longer than 4096 bytes");
    if (length > rest.size() - sizeof(uint32_t)) return wrong("it is cut off");
    const auto message = MessageReader(rest.subspan(sizeof(uint32_t), length)).read();
    if (!message) return wrong("it is damaged");
    if (record == 0) {
      const auto pages_file = message->fields[kPagesId];
      if (!pages_file || *pages_file > UINT32_MAX) return wrong("pages_id is missing or too large");
      pagemap.pages_file = static_cast<uint32_t>(*pages_file);
    } else {
      PagemapRange range;
      if (const char* problem = problem_of(*message, after, range)) return wrong(problem);
      after = range.end();
      pagemap.ranges.push_back(range);
    }
    at += sizeof(uint32_t) + length;
  }
  if (record == 0) return fail(ErrorCode::kInvalid, "it has no record");
  return pagemap;
}

std::vector<std::byte> encode_pagemap(const Pagemap& pagemap) {
  std::vector<std::byte> file;
  add_u32(file, kCommonMagic);
  add_u32(file, kPagemapMagic);
  MessageWriter head;
  head.add(kPagesId, pagemap.pages_file);
  add_record(file, head);
  for (const PagemapRange& range : pagemap.ranges) {
    // All versions read the count of 32 bits, if there is no other.
    MessageWriter entry;
    entry.add(kVaddr, range.address);
    entry.add(kPages32, range.pages);
    entry.add(kFlags, range.flags);
    add_record(file, entry);
  }
  return file;
}

}  // namespace farpage::criu
