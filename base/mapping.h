// Mapping: owns one mmap'ed range.
#pragma once

#include <cstddef>
#include <span>

#include "base/fd.h"
#include "base/result.h"

namespace farpage {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Zeroed private memory, allocated lazily by the kernel (`prefault`: all of it now).
  static Result<Mapping> anonymous(size_t bytes, bool prefault = false);
  // The first `bytes` bytes of a descriptor, shared, readable and writable.
  static Result<Mapping> shared(int fd, size_t bytes);
  // Takes ownership of an existing mapping.
  static Mapping adopt(void* address, size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  bool valid() const { return data_ != nullptr; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A memfd of `bytes` bytes, sealed against shrinking and growing. `huge` asks for 2 MiB pages.
Result<Fd> create_memfd(const char* name, size_t bytes, bool huge = false);

}  // namespace farpage
