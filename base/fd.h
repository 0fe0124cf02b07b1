// Fd: owns one file descriptor.
#pragma once

#include <utility>

#include "base/result.h"

namespace farpage {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Releases the descriptor; the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  void reset();

  // Wraps the result of a system call; negative: a failure.
  static Result<Fd> from_call(int returned, std::string_view context);
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace farpage
