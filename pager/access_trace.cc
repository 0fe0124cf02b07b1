#include "pager/access_trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "base/check.h"

namespace farpage::pager {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'F', 'P', 'T', 'R', 'A', 'C', 'E', '2'};

struct Header {
  char magic[8];
  uint64_t pages;
  uint64_t accesses;
  uint64_t warm_up;
};
static_assert(sizeof(Header) == 32);

tl::unexpected<Error> no_trace(const char* why) {
  return fail(ErrorCode::kInvalid, std::string("not a trace of accesses: ") + why);
}

}  // namespace

AccessTrace::AccessTrace(uint64_t pages) : pages_(pages) {
  FARPAGE_CHECK(pages >= 1 && pages <= kMaxTracePages, "%llu pages",
                static_cast<unsigned long long>(pages));
}

void AccessTrace::add(PageAccess access) {
  FARPAGE_CHECK(access.page < pages_, "page %u of %llu", access.page,
                static_cast<unsigned long long>(pages_));
  FARPAGE_CHECK(size() < kMaxTraceAccesses, "%zu accesses", packed_.size());
  packed_.push_back(access.page << 2 | static_cast<uint32_t>(access.kind));
}

uint64_t AccessTrace::most_live() const {
  std::vector<bool> live(pages_);
  uint64_t now = 0;
  uint64_t most = 0;
  for (uint64_t i = 0; i < size(); ++i) {
    const auto [page, kind] = (*this)[i];
    const bool is_live = kind != AccessKind::kDiscard;
    if (live[page] == is_live) continue;
    live[page] = is_live;
    now = is_live ? now + 1 : now - 1;
    most = std::max(most, now);
  }
  return most;
}

AccessTrace AccessTrace::without_gaps(uint64_t block_pages) const {
  std::vector<bool> used(pages_ / block_pages + 1);
  for (uint64_t i = 0; i < size(); ++i) used[(*this)[i].page / block_pages] = true;
  std::vector<uint64_t> number(used.size());  // of each used block
  uint64_t blocks = 0;
  for (size_t block = 0; block < used.size(); ++block)
    if (used[block]) number[block] = blocks++;
  AccessTrace trace(std::max<uint64_t>(blocks, 1) * block_pages);
  trace.packed_.reserve(packed_.size());
  for (uint64_t i = 0; i < size(); ++i) {
    const auto [page, kind] = (*this)[i];
    trace.add({static_cast<uint32_t>(number[page / block_pages] * block_pages + page % block_pages),
               kind});
  }
  trace.warm_up_ = warm_up_;
  return trace;
}

std::vector<std::byte> AccessTrace::encode() const {
  Header header{.magic = {}, .pages = pages_, .accesses = size(), .warm_up = warm_up_};
  std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
  const auto body = std::as_bytes(std::span(packed_));
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof header);
  return bytes;
}

Result<AccessTrace> AccessTrace::decode(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) return no_trace("it is shorter than the header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!std::equal(std::begin(kMagic), std::end(kMagic), header.magic))
    return no_trace("it does not begin with FPTRACE2");
  if (header.pages < 1 || header.pages > kMaxTracePages) return no_trace("its number of pages");
  const auto body = bytes.subspan(sizeof header);
  if (header.accesses > kMaxTraceAccesses || body.size() != header.accesses * sizeof(uint32_t))
    return no_trace("its length is not that of its accesses");
  if (header.warm_up > header.accesses) return no_trace("its warm-up is longer than the trace");
  AccessTrace trace(header.pages);
  trace.warm_up_ = header.warm_up;
  trace.packed_.resize(header.accesses);
  if (!body.empty()) std::memcpy(trace.packed_.data(), body.data(), body.size());
  for (const uint32_t packed : trace.packed_) {
    if (packed >> 2 >= header.pages)
      return no_trace("a page number is not below its number of pages");
    if ((packed & 3) > static_cast<uint32_t>(AccessKind::kDiscard))
      return no_trace("an access of no known kind");
  }
  return trace;
}

Status AccessTrace::write_file(const std::string& path) const {
  const std::vector<std::byte> bytes = encode();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return fail(ErrorCode::kInvalid, path + ": cannot be written");
  return {};
}

Result<AccessTrace> AccessTrace::read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return fail(ErrorCode::kInvalid, path + ": cannot be opened");
  const std::streamoff length = file.tellg();
  if (length < 0) return fail(ErrorCode::kInvalid, path + ": cannot be read");
  std::vector<std::byte> bytes(static_cast<size_t>(length));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), length);
  if (!file) return fail(ErrorCode::kInvalid, path + ": cannot be read");
  Result<AccessTrace> trace = decode(bytes);
  if (!trace) return fail_with(path, std::move(trace).error());
  return trace;
}

}  // namespace farpage::pager
