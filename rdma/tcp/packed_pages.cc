#include "rdma/tcp/packed_pages.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

namespace farpage::rdma::tcp {

std::optional<size_t> pack_page(PageCodec& codec, std::span<const std::byte> page,
                                std::span<std::byte> out) {
  if (out.size() < kMinPackedPageBytes) return std::nullopt;
  const std::span<std::byte> body = out.subspan(kPackedLengthBytes);
  std::optional<size_t> bytes =
      codec.compress(page, body.first(std::min(body.size(), kPageBytes - 1)));
  if (!bytes) {
    if (body.size() < kPageBytes) return std::nullopt;
    std::memcpy(body.data(), page.data(), kPageBytes);
    bytes = kPageBytes;
  }
  const uint16_t wire = htole16(static_cast<uint16_t>(*bytes));
  std::memcpy(out.data(), &wire, sizeof wire);
  return kPackedLengthBytes + *bytes;
}

size_t packed_length(std::span<const std::byte> packed) {
  uint16_t wire = 0;
  std::memcpy(&wire, packed.data(), sizeof wire);
  return le16toh(wire);
}

bool unpack_page(std::span<const std::byte> packed, std::span<std::byte> page) {
  const std::span<const std::byte> body = packed.subspan(kPackedLengthBytes);
  if (body.size() != kPageBytes) return decompress_page(body, page);
  std::memcpy(page.data(), body.data(), kPageBytes);
  return true;
}

}  // namespace farpage::rdma::tcp
