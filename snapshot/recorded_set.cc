#include "snapshot/recorded_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/whole_file.h"

namespace farpage::snapshot {
namespace {

constexpr size_t kDigestBytes = 64;

struct SetHead {
  std::array<char, 8> magic{'F', 'P', 'S', 'E', 'T', '0', '0', '1'};
  uint64_t pages = 0;
  uint64_t checksum = 0;  // XXH3 of what follows the head
  std::array<char, kDigestBytes> digest{};
};

// How much there was.
Result<size_t> read_up_to(int fd, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("reading a recorded set");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

constexpr size_t packed_bytes(uint64_t pages) {
  return (pages + 1) / 2;
}

}  // namespace

Result<RecordedSet> RecordedSet::decode(std::span<const std::byte> file, const std::string& digest,
                                        uint64_t pages) {
  SetHead head;
  if (file.size() < sizeof head) return fail(ErrorCode::kInvalid, "it is no recorded set");
  std::memcpy(&head, file.data(), sizeof head);
  if (head.magic != SetHead{}.magic) return fail(ErrorCode::kInvalid, "it is no recorded set");
  if (head.pages != pages || std::string_view(head.digest.data(), kDigestBytes) != digest)
    return fail(ErrorCode::kConflict, "it is of another image");
  const std::span<const std::byte> packed = file.subspan(sizeof head);
  if (packed.size() < packed_bytes(pages) ||
      XXH3_64bits(packed.data(), packed_bytes(pages)) != head.checksum)
    return fail(ErrorCode::kInvalid, "it is damaged");
  RecordedSet set(digest, pages);
  for (uint64_t page = 0; page < pages; ++page) {
    set.classes_[page] =
        static_cast<uint8_t>(std::to_integer<unsigned>(packed[page / 2]) >> (page % 2 * 4) & 0xf);
    set.size_ += set.classes_[page] != 0 ? 1 : 0;
  }
  return set;
}

Result<RecordedSet> RecordedSet::load(const std::string& path, const std::string& digest,
                                      uint64_t pages) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return fail(ErrorCode::kNotFound, path);
  if (!fd.valid()) return fail_errno(path);
  std::vector<std::byte> file(sizeof(SetHead) + packed_bytes(pages));
  FARPAGE_TRY(got, read_up_to(fd.get(), file));
  auto decoded = decode(std::span(file).first(got), digest, pages);
  if (!decoded) return fail_with(path, decoded.error());
  return decoded;
}

std::vector<std::byte> RecordedSet::encode() const {
  std::vector<std::byte> file(sizeof(SetHead) + packed_bytes(classes_.size()));
  const std::span packed = std::span(file).subspan(sizeof(SetHead));
  for (uint64_t page = 0; page < classes_.size(); ++page)
    packed[page / 2] |= std::byte(classes_[page] << (page % 2 * 4));
  SetHead head;
  head.pages = classes_.size();
  head.checksum = XXH3_64bits(packed.data(), packed.size());
  std::memcpy(head.digest.data(), digest_.data(), std::min(digest_.size(), kDigestBytes));
  std::memcpy(file.data(), &head, sizeof head);
  return file;
}

Status RecordedSet::publish(const std::string& path) const {
  return write_whole(path, encode());
}

bool RecordedSet::take(uint64_t page, uint8_t touch, uint64_t most) {
  uint8_t& known = classes_[page];
  if (touch == 0 || (known != 0 && known <= touch)) return false;
  if (known == 0 && size_ >= most) return false;
  size_ += known == 0 ? 1 : 0;
  known = touch;
  return true;
}

bool RecordedSet::add(std::span<const uint8_t> touches) {
  const uint64_t most = classes_.size() * kMaxPercent / 100;
  const uint64_t pages = std::min<uint64_t>(touches.size(), classes_.size());
  uint64_t added = 0;
  for (uint64_t page = 0; page < pages; ++page)
    added += touches[page] != 0 && classes_[page] == 0 ? 1 : 0;
  bool changed = false;
  if (size_ + added <= most) {
    for (uint64_t page = 0; page < pages; ++page) changed |= take(page, touches[page], most);
    return changed;
  }
  // Not all have room: the earliest classes first, they matter most.
  for (uint8_t now = 1; now <= kClasses; ++now)
    for (uint64_t page = 0; page < pages; ++page)
      if (touches[page] == now) changed |= take(page, now, most);
  return changed;
}

std::vector<uint32_t> RecordedSet::in_order() const {
  std::array<size_t, kClasses + 2> place{};  // of the next page of each class
  for (const uint8_t of_page : classes_) ++place[of_page + size_t{1}];
  place[1] = 0;
  for (size_t i = 2; i < place.size(); ++i) place[i] += place[i - 1];
  std::vector<uint32_t> pages(size_);
  for (uint64_t page = 0; page < classes_.size(); ++page)
    if (classes_[page] != 0) pages[place[classes_[page]]++] = static_cast<uint32_t>(page);
  return pages;
}

}  // namespace farpage::snapshot
