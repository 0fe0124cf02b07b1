#include "rdma/tcp/write_packer.h"

#include "base/check.h"

namespace farpage::rdma::tcp {

Result<std::unique_ptr<WritePacker>> WritePacker::create(PackWrites when) {
  std::unique_ptr<WritePacker> packer(new WritePacker(when));
  FARPAGE_TRY(ring, Mapping::anonymous(kRingBytes));
  packer->ring_ = std::move(ring);
  return packer;
}

std::span<std::byte> WritePacker::pack(std::span<const std::byte> data) {
  if (!can_be_packed(data.size()) || !is_worth_trying()) return {};
  const size_t limit = always_ ? data.size() / kPageBytes * kMaxPackedPageBytes : data.size() - 1;
  const std::span<std::byte> place = room(limit);
  size_t used = 0;
  for (size_t at = 0; at < data.size() && !place.empty(); at += kPageBytes) {
    const auto bytes = pack_page(codec_, data.subspan(at, kPageBytes), place.subspan(used));
    recent_bytes_ -= recent_bytes_ / kRecentPages;
    recent_bytes_ += bytes.value_or(kPageBytes);
    if (!bytes) return {};
    used += *bytes;
  }
  if (used == 0) return {};
  ++count_;
  tail_ = static_cast<size_t>(place.data() - ring_.data()) + used;
  return place.first(used);
}

bool WritePacker::is_worth_trying() {
  if (always_ || recent_bytes_ <= kRecentPages * kPageBytes * kMaxPercent / 100) return true;
  not_tried_ = (not_tried_ + 1) % kSampled;
  return not_tried_ == 0;
}

std::span<std::byte> WritePacker::room(size_t bytes) {
  const std::span<std::byte> ring = ring_.bytes();
  if (tail_ >= head_) {
    if (ring.size() - tail_ >= bytes) return ring.subspan(tail_, bytes);
    return head_ > bytes ? ring.first(bytes) : std::span<std::byte>();
  }
  // Never full: then tail_ would be head_, as in an empty ring.
  return head_ - tail_ > bytes ? ring.subspan(tail_, bytes) : std::span<std::byte>();
}

void WritePacker::release(std::span<const std::byte> packed) {
  FARPAGE_CHECK(count_ > 0, "nothing is packed, and %zu bytes are released", packed.size());
  head_ = static_cast<size_t>(packed.data() - ring_.data()) + packed.size();
  if (--count_ > 0) return;
  head_ = 0;
  tail_ = 0;
}

}  // namespace farpage::rdma::tcp
