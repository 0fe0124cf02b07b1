// PageCodec: one page as an lz4 block (github.com/lz4/lz4, doc/lz4_Block_format.md).
//
// Measured with liblz4 1.9.4 (docs/experiments/compressed-tier.md): compressing takes 1 us (a page
// that does not compress) to 10 us, decompressing 0.4 to 1.6 us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace farpage {

// Threads: one at a time; decompress_page() any.
class PageCodec {
 public:
  PageCodec();
  ~PageCodec();

  // The bytes used of `out`; nullopt: the page does not fit into it. `page`: kPageBytes.
  std::optional<size_t> compress(std::span<const std::byte> page, std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The inverse. False: `block` is not what compress() has returned. `page`: kPageBytes.
[[nodiscard]] bool decompress_page(std::span<const std::byte> block, std::span<std::byte> page);

}  // namespace farpage
