// Checkpoint: a folder that `criu dump` has filled, seen as pages that a page server can serve and
// all the rest, which the restoring host needs as files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "criu/address_index.h"
#include "criu/pagemap.h"
#include "image/page_source.h"

namespace farpage::criu {

inline constexpr size_t kMaxProcesses = 65536;

// The pages of one process: pagemap-PID.img, and the file that it names.
struct ProcessPages {
  uint64_t pid = 0;
  Pagemap pagemap;
  std::string pages_path;
  Fd pages;
  image::FileState state;  // of the file of the pages
};

// Threads: one.
class Checkpoint {
 public:
  // kInvalid, kUnsupported: the file and what is wrong with it.
  static Result<Checkpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::vector<ProcessPages>& processes() const { return processes_; }  // sorted by pid

 private:
  explicit Checkpoint(std::string folder) : folder_(std::move(folder)) {}
  Status add_process(const std::string& name, uint64_t pid);
  Status check() const;

  std::string folder_;
  std::vector<ProcessPages> processes_;
};

// The pages of a checkpoint that page servers are asked for, behind their index, as push() takes
// them. The checkpoint outlives it.
class CheckpointSource final : public image::PageSource {
 public:
  // kInvalid: there are none, or more than an image can have.
  static Result<CheckpointSource> create(const Checkpoint& checkpoint);

  const AddressIndex& index() const { return index_; }
  const std::string& name() const override { return checkpoint_->folder(); }
  uint64_t bytes() const override;
  Result<uint64_t> next_data(uint64_t page) const override { return page; }
  Result<uint64_t> end_of_data(uint64_t page) const override;
  Status read(uint64_t page, std::span<std::byte> to) const override;
  bool is_unchanged() const override;

 private:
  // Pages of the image that lie one after the other in the file of a process.
  struct Part {
    uint64_t first_page = 0;
    uint64_t pages = 0;
    const ProcessPages* process = nullptr;
    uint64_t file_page = 0;
  };
  CheckpointSource(const Checkpoint& checkpoint, AddressIndex index, std::vector<Part> parts)
      : checkpoint_(&checkpoint),
        index_(std::move(index)),
        encoded_index_(index_.encode()),
        parts_(std::move(parts)) {}

  const Checkpoint* checkpoint_;
  AddressIndex index_;
  std::vector<std::byte> encoded_index_;
  std::vector<Part> parts_;  // sorted by first_page
};

// A copy of a checkpoint without the pages that page servers are asked for: what the restoring host
// needs beside the page server. Its ranges are those that `criu dump --lazy-pages` leaves. It is
// made under another name, and there is nothing left of it unless keep() was called.
class RemainingCheckpoint {
 public:
  // kConflict: there is something at `path` already.
  static Result<std::unique_ptr<RemainingCheckpoint>> create(const Checkpoint& checkpoint,
                                                             const std::string& path);
  ~RemainingCheckpoint();
  RemainingCheckpoint(const RemainingCheckpoint&) = delete;
  RemainingCheckpoint& operator=(const RemainingCheckpoint&) = delete;

  // It is on the disk, and at its path.
  Status keep();

 private:
  RemainingCheckpoint(std::string path, std::string partial)
      : path_(std::move(path)), partial_(std::move(partial)) {}
  Status copy_all(const Checkpoint& checkpoint) const;
  Status write_process(const ProcessPages& process) const;

  const std::string path_;
  const std::string partial_;
  bool kept_ = false;
};

}  // namespace farpage::criu
