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

  // Zeroed private memory, touched lazily by the kernel (`prefault` touches all of it now).
  static Result<Mapping> anonymous(size_t bytes, bool prefault = false);
  // A descriptor's first `bytes` bytes, shared, readable and writable.
  static Result<Mapping> shared(int fd, size_t bytes);
  // Takes over a range somebody else mapped.
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
