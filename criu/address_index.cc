#include "criu/address_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "criu/pagemap.h"

namespace farpage::criu {
namespace {

struct Header {
  char magic[8] = {'f', 'p', '-', 'c', 'r', 'i', 'u', '1'};
  uint64_t ranges = 0;
  uint64_t reserved[2] = {0, 0};
};
static_assert(sizeof(Header) == sizeof(IndexedRange));

uint64_t pages_for(uint64_t ranges) {
  return ((ranges + 1) * sizeof(IndexedRange) + kPageBytes - 1) >> kPageShift;
}

bool is_magic(const Header& header) {
  return std::memcmp(header.magic, Header{}.magic, sizeof header.magic) == 0;
}

// nullptr: nothing is wrong.
const char* problem_of(const IndexedRange& range, const IndexedRange* before) {
  if (range.address % kPageBytes != 0) return "its address is not that of a page";
  if (range.pages == 0 || range.address >= kMaxAddress ||
      range.pages > (kMaxAddress - range.address) >> kPageShift)
    return "it is empty, or ends behind the last address";
  if (before == nullptr || before->process < range.process) return nullptr;
  if (before->process > range.process || before->end() > range.address)
    return "it is not behind the range before";
  return nullptr;
}

}  // namespace

Result<AddressIndex> AddressIndex::create(std::span<const IndexedRange> ranges) {
  std::vector<IndexedRange> joined;
  for (const IndexedRange& range : ranges) {
    IndexedRange* before = joined.empty() ? nullptr : &joined.back();
    if (const char* problem = problem_of(range, before))
      return fail(ErrorCode::kInvalid, fmt::format("address {:#x} of process {}: {}", range.address,
                                                   range.process, problem));
    if (before != nullptr && before->process == range.process && before->end() == range.address) {
      before->pages += range.pages;
    } else {
      joined.push_back(range);
    }
  }
  if (joined.size() > kMaxIndexRanges)
    return fail(ErrorCode::kInvalid,
                fmt::format("there are {} ranges of addresses: at most {} are supported",
                            joined.size(), kMaxIndexRanges));
  uint64_t page = pages_for(joined.size());
  for (IndexedRange& range : joined) {
    range.first_page = page;
    page += range.pages;
  }
  return AddressIndex(std::move(joined));
}

Result<uint64_t> AddressIndex::pages_of(std::span<const std::byte> first_page,
                                        uint64_t image_pages) {
  Header header;
  if (first_page.size() < sizeof header) return fail(ErrorCode::kInvalid, "the index is cut off");
  std::memcpy(&header, first_page.data(), sizeof header);
  if (!is_magic(header)) return fail(ErrorCode::kInvalid, "it is no checkpoint of criu");
  if (header.ranges > kMaxIndexRanges || pages_for(header.ranges) > image_pages)
    return fail(ErrorCode::kInvalid,
                fmt::format("its index would have {} ranges of addresses", header.ranges));
  return pages_for(header.ranges);
}

Result<AddressIndex> AddressIndex::decode(std::span<const std::byte> bytes, uint64_t image_pages) {
  FARPAGE_TRY(pages, pages_of(bytes, image_pages));
  if (bytes.size() < pages << kPageShift) return fail(ErrorCode::kInvalid, "the index is cut off");
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::vector<IndexedRange> ranges(header.ranges);
  if (!ranges.empty())
    std::memcpy(ranges.data(), bytes.data() + sizeof header, ranges.size() * sizeof(IndexedRange));
  for (size_t i = 0; i < ranges.size(); ++i) {
    const IndexedRange& range = ranges[i];
    const char* problem = problem_of(range, i == 0 ? nullptr : &ranges[i - 1]);
    if (problem == nullptr && (range.first_page < pages || range.first_page >= image_pages ||
                               range.pages > image_pages - range.first_page))
      problem = "its pages are outside of the image";
    if (problem != nullptr)
      return fail(ErrorCode::kInvalid, fmt::format("range {} of the index: {}", i, problem));
  }
  return AddressIndex(std::move(ranges));
}

std::vector<std::byte> AddressIndex::encode() const {
  Header header;
  header.ranges = ranges_.size();
  std::vector<std::byte> bytes(pages() << kPageShift);
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!ranges_.empty())
    std::memcpy(bytes.data() + sizeof header, ranges_.data(),
                ranges_.size() * sizeof(IndexedRange));
  return bytes;
}

std::optional<AddressIndex::Place> AddressIndex::find(uint64_t process, uint64_t address) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), std::tie(process, address),
                                      [](const auto& wanted, const IndexedRange& range) {
                                        return wanted < std::tie(range.process, range.address);
                                      });
  if (after == ranges_.begin()) return std::nullopt;
  const IndexedRange& range = *std::prev(after);
  if (range.process != process || address >= range.end()) return std::nullopt;
  const uint64_t offset = (address - range.address) >> kPageShift;
  return Place{range.first_page + offset, range.pages - offset};
}

uint64_t AddressIndex::pages() const {
  return pages_for(ranges_.size());
}

uint64_t AddressIndex::indexed_pages() const {
  uint64_t pages = 0;
  for (const IndexedRange& range : ranges_) pages += range.pages;
  return pages;
}

uint64_t AddressIndex::processes() const {
  uint64_t count = 0;
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (i == 0 || ranges_[i].process != ranges_[i - 1].process) ++count;
  return count;
}

}  // namespace farpage::criu
