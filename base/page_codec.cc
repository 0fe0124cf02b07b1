#include "base/page_codec.h"

#include <lz4.h>

namespace farpage {

// LZ4_compress_default() would have it on the stack, which may be that of a signal handler.
struct PageCodec::State {
  LZ4_stream_t stream;
};

PageCodec::PageCodec() : state_(std::make_unique<State>()) {}
PageCodec::~PageCodec() = default;

std::optional<size_t> PageCodec::compress(std::span<const std::byte> page,
                                          std::span<std::byte> out) {
  const int bytes =
      LZ4_compress_fast_extState(&state_->stream, reinterpret_cast<const char*>(page.data()),
                                 reinterpret_cast<char*>(out.data()), static_cast<int>(page.size()),
                                 static_cast<int>(out.size()), /*acceleration=*/1);
  if (bytes <= 0) return std::nullopt;
  return static_cast<size_t>(bytes);
}

bool decompress_page(std::span<const std::byte> block, std::span<std::byte> page) {
  const int bytes = LZ4_decompress_safe(
      reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(page.data()),
      static_cast<int>(block.size()), static_cast<int>(page.size()));
  return bytes == static_cast<int>(page.size());
}

}  // namespace farpage
