// Packed pages: what follows the header of a packed WRITE (docs/protocol-tcp.md). Each page is a
// length of 2 bytes, and so many bytes: an lz4 block, or with length kPageBytes the page itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/page_codec.h"
#include "base/strong.h"

namespace farpage::rdma::tcp {

inline constexpr size_t kPackedLengthBytes = 2;
inline constexpr size_t kMinPackedPageBytes = kPackedLengthBytes + 1;
inline constexpr size_t kMaxPackedPageBytes = kPackedLengthBytes + kPageBytes;

// Whether data of so many bytes is whole pages.
inline bool can_be_packed(size_t bytes) {
  return bytes != 0 && bytes % kPageBytes == 0;
}

// Appends one page at the front of `out`. Returns the bytes used; nullopt: it has no room.
std::optional<size_t> pack_page(PageCodec& codec, std::span<const std::byte> page,
                                std::span<std::byte> out);

// The length at the front of the bytes of one page, which are at least kPackedLengthBytes.
size_t packed_length(std::span<const std::byte> packed);
// False: `packed` is not what pack_page() has made. `page`: kPageBytes; nothing else is written.
[[nodiscard]] bool unpack_page(std::span<const std::byte> packed, std::span<std::byte> page);

}  // namespace farpage::rdma::tcp
