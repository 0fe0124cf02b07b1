#include "criu/page_request.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/strong.h"
#include "criu/pagemap.h"

namespace farpage::criu {
namespace {

constexpr uint32_t kAddPages = 6;
constexpr uint32_t kGetPages = 7;
constexpr uint32_t kClose = 0x1023;
constexpr uint32_t kForceClose = 0x1024;
constexpr unsigned kFlagShift = 16;
constexpr uint32_t kCommandMask = 0xffff;

constexpr size_t kNarrowBytes = 24;
constexpr size_t kWideBytes = 32;

size_t bytes_of(MessageForm form) {
  return form == MessageForm::kWide ? kWideBytes : kNarrowBytes;
}

template <typename T>
T value_at(std::span<const std::byte> bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void put(std::vector<std::byte>& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Of the first request, of which there are kNarrowBytes. Who has nothing to ask for ends with a
// message of zeros behind the command: that is the same in both forms.
MessageForm form_of(std::span<const std::byte> bytes) {
  const auto second = value_at<uint64_t>(bytes, 8);
  return second != 0 && second <= kMaxRequestPages ? MessageForm::kWide : MessageForm::kNarrow;
}

const char* name_of(uint32_t command) {
  constexpr std::array<const char*, 6> kNames{"ADD", "HOLE", "OPEN", "OPEN2", "PARENT", "ADD_F"};
  return command >= 1 && command <= kNames.size() ? kNames[command - 1] : nullptr;
}

}  // namespace

Status RequestReader::add(std::span<const std::byte> bytes) {
  FARPAGE_CHECK(has_room() && bytes.size() <= kMaxPartBytes, "%zu bytes", bytes.size());
  partial_.insert(partial_.end(), bytes.begin(), bytes.end());
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  std::span<const std::byte> rest = partial_;
  while (!rest.empty() && !ended_) {
    FARPAGE_TRY(taken, take_one(rest));
    if (taken == 0) break;
    rest = rest.subspan(taken);
  }
  if (ended_) rest = {};
  partial_.erase(partial_.begin(), partial_.end() - static_cast<std::ptrdiff_t>(rest.size()));
  return {};
}

// The bytes of the first request; 0: a part of it is missing.
Result<size_t> RequestReader::take_one(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(uint32_t)) return 0;
  const uint32_t command = value_at<uint32_t>(bytes, 0) & kCommandMask;
  const bool is_end = command == kClose || command == kForceClose;
  if (command != kGetPages && !is_end) {
    if (const char* name = name_of(command))
      return fail(ErrorCode::kInvalid,
                  fmt::format("command {} ({}): this server gives pages and takes none: is that "
                              "criu lazy-pages?",
                              command, name));
    return fail(ErrorCode::kInvalid,
                fmt::format("command {:#x}: that is not criu lazy-pages, or one with --tls",
                            value_at<uint32_t>(bytes, 0)));
  }
  if (bytes.size() < kNarrowBytes) return 0;
  const MessageForm form = form_.value_or(form_of(bytes));
  if (bytes.size() < bytes_of(form)) return 0;
  form_ = form;
  PageRequest request;
  if (is_end) {
    request.kind = PageRequest::Kind::kEnd;
    ended_ = true;
    waiting_.push_back(request);
    return bytes_of(form);
  }
  const size_t tail = bytes_of(form) - 16;
  request.pages =
      form == MessageForm::kWide ? value_at<uint64_t>(bytes, 8) : value_at<uint32_t>(bytes, 4);
  request.address = value_at<uint64_t>(bytes, tail);
  request.process = value_at<uint64_t>(bytes, tail + 8);
  if (request.pages == 0 || request.pages > kMaxRequestPages)
    return fail(ErrorCode::kInvalid,
                fmt::format("nr_pages: {} is not 1 to {}", request.pages, kMaxRequestPages));
  if (request.address % kPageBytes != 0 || request.address >= kMaxAddress)
    return fail(ErrorCode::kInvalid,
                fmt::format("vaddr: {:#x} is no address of a page", request.address));
  waiting_.push_back(request);
  return bytes_of(form);
}

std::optional<PageRequest> RequestReader::next() {
  if (taken_ == waiting_.size()) return std::nullopt;
  return waiting_[taken_++];
}

std::vector<std::byte> encode_answer(MessageForm form, const PageRequest& answered) {
  std::vector<std::byte> bytes(bytes_of(form));
  put(bytes, 0, kPresent << kFlagShift | kAddPages);
  if (form == MessageForm::kWide) {
    put(bytes, 8, answered.pages);
  } else {
    put(bytes, 4, static_cast<uint32_t>(answered.pages));
  }
  put(bytes, bytes.size() - 16, answered.address);
  put(bytes, bytes.size() - 8, answered.process);
  return bytes;
}

std::vector<std::byte> encode_end() {
  return std::vector<std::byte>(sizeof(int32_t));
}

}  // namespace farpage::criu
