// PageSource: the pages that push() uploads, by their numbers in the image. FileSource: those of a
// file, which has the memory of one guest.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::image {

// Threads: one.
class PageSource {
 public:
  virtual ~PageSource() = default;

  virtual const std::string& name() const = 0;  // for messages
  virtual uint64_t bytes() const = 0;           // whole pages, at least one
  // The next page at or behind `page` that has data; the end of the source: none.
  virtual Result<uint64_t> next_data(uint64_t page) const = 0;
  // The end of the data at `page`. What is no data is zeros, or the page of a base.
  virtual Result<uint64_t> end_of_data(uint64_t page) const = 0;
  virtual Status read(uint64_t page, std::span<std::byte> to) const = 0;
  // Whether it is what it was when it was opened, as far as can be seen.
  virtual bool is_unchanged() const = 0;
};

// A file that is pushed or that others read meanwhile: its size and the time of its last change.
class FileState {
 public:
  // kInvalid: it is no regular file.
  static Result<FileState> of(const Fd& fd, const std::string& path);
  bool is_that_of(const Fd& fd) const;
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
  timespec changed_{};
};

// All of the span from the offset on, which is in bytes. kConflict: the file ends before.
Status read_file(const Fd& fd, const std::string& path, uint64_t offset, std::span<std::byte> to);

class FileSource final : public PageSource {
 public:
  // kInvalid: no file of 1 page to coordinator::kMaxImageBytes.
  static Result<FileSource> open(const std::string& path);

  const std::string& name() const override { return path_; }
  uint64_t bytes() const override { return state_.bytes(); }
  Result<uint64_t> next_data(uint64_t page) const override;
  Result<uint64_t> end_of_data(uint64_t page) const override;
  Status read(uint64_t page, std::span<std::byte> to) const override;
  bool is_unchanged() const override { return state_.is_that_of(fd_); }

 private:
  FileSource(Fd fd, std::string path, FileState state)
      : fd_(std::move(fd)), path_(std::move(path)), state_(state) {}
  Result<uint64_t> seek(uint64_t page, int what) const;

  Fd fd_;
  std::string path_;
  FileState state_;
};

}  // namespace farpage::image
