#include "criu/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

#include "coordinator/api.h"

namespace farpage::criu {
namespace {

constexpr size_t kCopyPages = 64;

// PID of "pagemap-PID.img".
std::optional<uint64_t> pid_of(std::string_view name) {
  constexpr std::string_view kBefore = "pagemap-";
  constexpr std::string_view kAfter = ".img";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter) ||
      name.size() <= kBefore.size() + kAfter.size())
    return std::nullopt;
  name = name.substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size());
  uint64_t pid = 0;
  const auto [rest, problem] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (problem != std::errc() || rest != name.data() + name.size()) return std::nullopt;
  return pid;
}

std::string pages_name(const Pagemap& pagemap) {
  return fmt::format("pages-{}.img", pagemap.pages_file);
}

// The entries of a folder; kInvalid: it is none.
Result<std::vector<std::filesystem::directory_entry>> entries_of(const std::string& folder) {
  std::vector<std::filesystem::directory_entry> entries;
  std::error_code problem;
  std::filesystem::directory_iterator entry(folder, problem);
  for (; !problem && entry != std::filesystem::directory_iterator(); entry.increment(problem))
    entries.push_back(*entry);
  if (problem) return fail_errno("reading folder " + folder, problem.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

Result<std::vector<std::byte>> content_of(const std::string& path) {
  FARPAGE_TRY(fd, Fd::from_call(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "opening " + path));
  FARPAGE_TRY(state, image::FileState::of(fd, path));
  if (state.bytes() > kMaxPagemapBytes)
    return fail(ErrorCode::kInvalid, path + ": it is larger than 256 MiB");
  std::vector<std::byte> bytes(state.bytes());
  FARPAGE_TRY_VOID(image::read_file(fd, path, 0, bytes));
  return bytes;
}

Result<Fd> create_file(const std::string& path) {
  constexpr mode_t kMode = 0600;  // it has the memory of a process
  return Fd::from_call(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode),
                       "creating " + path);
}

Status write_file(const Fd& fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno("writing " + path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status sync(const Fd& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0) return fail_errno("writing " + path);
  return {};
}

// Bytes of one file to the end of another one.
Status copy_bytes(const Fd& from, const std::string& from_path, uint64_t offset, uint64_t bytes,
                  const Fd& to, const std::string& to_path) {
  std::vector<std::byte> buffer(kCopyPages << kPageShift);
  for (uint64_t done = 0; done < bytes;) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes - done));
    FARPAGE_TRY_VOID(image::read_file(from, from_path, offset + done, part));
    FARPAGE_TRY_VOID(write_file(to, to_path, part));
    done += part.size();
  }
  return {};
}

Status copy_whole(const std::string& from, const std::string& to) {
  FARPAGE_TRY(source, Fd::from_call(::open(from.c_str(), O_RDONLY | O_CLOEXEC), "opening " + from));
  FARPAGE_TRY(state, image::FileState::of(source, from));
  FARPAGE_TRY(target, create_file(to));
  FARPAGE_TRY_VOID(copy_bytes(source, from, 0, state.bytes(), target, to));
  return sync(target, to);
}

Status sync_folder(const std::string& path) {
  FARPAGE_TRY(fd, Fd::from_call(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                "opening " + path));
  return sync(fd, path);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint(folder);
  FARPAGE_TRY(entries, entries_of(folder));
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename();
    // A link to the checkpoint before this one, which has the other pages.
    if (name == "parent")
      return fail(
          ErrorCode::kUnsupported,
          folder + " has a part of the pages in its parent: dump without --prev-images-dir");
    if (const auto pid = pid_of(name)) FARPAGE_TRY_VOID(checkpoint.add_process(name, *pid));
  }
  if (checkpoint.processes_.empty())
    return fail(ErrorCode::kInvalid, folder + " is no checkpoint of criu: no pagemap-PID.img");
  std::sort(checkpoint.processes_.begin(), checkpoint.processes_.end(),
            [](const ProcessPages& a, const ProcessPages& b) { return a.pid < b.pid; });
  FARPAGE_TRY_VOID(checkpoint.check());
  return checkpoint;
}

Status Checkpoint::add_process(const std::string& name, uint64_t pid) {
  if (processes_.size() == kMaxProcesses)
    return fail(ErrorCode::kInvalid,
                fmt::format("{} has more than {} processes", folder_, kMaxProcesses));
  const std::string path = folder_ + "/" + name;
  FARPAGE_TRY(content, content_of(path));
  auto pagemap = decode_pagemap(content);
  if (!pagemap) return fail_with(path, pagemap.error());
  for (const PagemapRange& range : pagemap->ranges) {
    if (range.is(kInParent))
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: the pages at {:#x} are in another checkpoint: dump without "
                              "--prev-images-dir",
                              path, range.address));
    if (!range.is(kPresent))
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: the pages at {:#x} are not in this folder: dump without "
                              "--lazy-pages",
                              path, range.address));
  }
  ProcessPages process{
      .pid = pid, .pagemap = std::move(*pagemap), .pages_path = {}, .pages = {}, .state = {}};
  process.pages_path = folder_ + "/" + pages_name(process.pagemap);
  FARPAGE_TRY(fd, Fd::from_call(::open(process.pages_path.c_str(), O_RDONLY | O_CLOEXEC),
                                "opening " + process.pages_path));
  FARPAGE_TRY(state, image::FileState::of(fd, process.pages_path));
  const uint64_t bytes = process.pagemap.present_pages() << kPageShift;
  if (state.bytes() != bytes)
    return fail(ErrorCode::kInvalid, fmt::format("{} has {} bytes, and {} names {}",
                                                 process.pages_path, state.bytes(), path, bytes));
  process.pages = std::move(fd);
  process.state = state;
  processes_.push_back(std::move(process));
  return {};
}

Status Checkpoint::check() const {
  std::set<uint32_t> files;
  std::set<uint64_t> pids;
  for (const ProcessPages& process : processes_) {
    if (!pids.insert(process.pid).second)
      return fail(ErrorCode::kInvalid,
                  fmt::format("{} has two pagemaps of process {}", folder_, process.pid));
    if (!files.insert(process.pagemap.pages_file).second)
      return fail(ErrorCode::kInvalid, process.pages_path + " is named by two pagemaps");
  }
  return {};
}

Result<CheckpointSource> CheckpointSource::create(const Checkpoint& checkpoint) {
  std::vector<IndexedRange> ranges;
  std::vector<Part> parts;
  uint64_t pages = 0;
  for (const ProcessPages& process : checkpoint.processes()) {
    uint64_t file_page = 0;
    for (const PagemapRange& range : process.pagemap.ranges) {
      if (range.is_served()) {
        ranges.push_back({process.pid, range.address, range.pages, 0});
        parts.push_back({pages, range.pages, &process, file_page});
        pages += range.pages;
      }
      file_page += range.pages;
    }
  }
  if (pages == 0)
    return fail(ErrorCode::kInvalid, checkpoint.folder() +
                                         " has no page that criu lazy-pages would ask for: it "
                                         "asks for private anonymous memory");
  FARPAGE_TRY(index, AddressIndex::create(ranges));
  if (index.pages() + pages > coordinator::kMaxImageBytes >> kPageShift)
    return fail(ErrorCode::kInvalid,
                fmt::format("{} has {} pages: an image has up to 1T", checkpoint.folder(), pages));
  for (Part& part : parts) part.first_page += index.pages();
  return CheckpointSource(checkpoint, std::move(index), std::move(parts));
}

uint64_t CheckpointSource::bytes() const {
  return (index_.pages() + index_.indexed_pages()) << kPageShift;
}

Result<uint64_t> CheckpointSource::end_of_data(uint64_t /*page*/) const {
  return bytes() >> kPageShift;
}

Status CheckpointSource::read(uint64_t page, std::span<std::byte> to) const {
  while (!to.empty()) {
    std::span<std::byte> now;
    if (page < index_.pages()) {
      const auto from = std::span(encoded_index_).subspan(page << kPageShift);
      now = to.first(std::min(to.size(), from.size()));
      std::copy_n(from.begin(), now.size(), now.begin());
    } else {
      const auto after =
          std::upper_bound(parts_.begin(), parts_.end(), page,
                           [](uint64_t wanted, const Part& p) { return wanted < p.first_page; });
      const Part& part = *std::prev(after);
      const uint64_t offset = page - part.first_page;
      now = to.first(std::min<uint64_t>(to.size(), (part.pages - offset) << kPageShift));
      FARPAGE_TRY_VOID(image::read_file(part.process->pages, part.process->pages_path,
                                        (part.file_page + offset) << kPageShift, now));
    }
    page += now.size() >> kPageShift;
    to = to.subspan(now.size());
  }
  return {};
}

bool CheckpointSource::is_unchanged() const {
  return std::all_of(
      checkpoint_->processes().begin(), checkpoint_->processes().end(),
      [](const ProcessPages& process) { return process.state.is_that_of(process.pages); });
}

Result<std::unique_ptr<RemainingCheckpoint>> RemainingCheckpoint::create(
    const Checkpoint& checkpoint, const std::string& path) {
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  std::error_code ignored;
  if (std::filesystem::symlink_status(plain, ignored).type() !=
      std::filesystem::file_type::not_found)
    return fail(ErrorCode::kConflict, plain + " exists already");
  const std::string partial = plain + ".partial";
  constexpr mode_t kMode = 0700;  // it has memory of a process
  if (::mkdir(partial.c_str(), kMode) != 0) return fail_errno("creating folder " + partial);
  std::unique_ptr<RemainingCheckpoint> made(new RemainingCheckpoint(plain, partial));
  FARPAGE_TRY_VOID(made->copy_all(checkpoint));
  return made;
}

RemainingCheckpoint::~RemainingCheckpoint() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(partial_, ignored);
}

Status RemainingCheckpoint::copy_all(const Checkpoint& checkpoint) const {
  std::set<std::string> of_processes;
  for (const ProcessPages& process : checkpoint.processes()) {
    FARPAGE_TRY_VOID(write_process(process));
    of_processes.insert(fmt::format("pagemap-{}.img", process.pid));
    of_processes.insert(pages_name(process.pagemap));
  }
  FARPAGE_TRY(entries, entries_of(checkpoint.folder()));
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename();
    std::error_code ignored;
    // Others are sockets of criu.
    if (!entry.is_regular_file(ignored) || of_processes.contains(name)) continue;
    FARPAGE_TRY_VOID(copy_whole(entry.path(), partial_ + "/" + name));
  }
  return {};
}

Status RemainingCheckpoint::write_process(const ProcessPages& process) const {
  const std::string pages_path = partial_ + "/" + pages_name(process.pagemap);
  FARPAGE_TRY(pages, create_file(pages_path));
  Pagemap remaining = process.pagemap;
  uint64_t file_page = 0;
  for (PagemapRange& range : remaining.ranges) {
    const uint64_t at = file_page;
    file_page += range.pages;
    if (range.is_served()) {
      range.flags &= ~kPresent;
      continue;
    }
    FARPAGE_TRY_VOID(copy_bytes(process.pages, process.pages_path, at << kPageShift,
                                range.pages << kPageShift, pages, pages_path));
  }
  FARPAGE_TRY_VOID(sync(pages, pages_path));
  const std::string path = fmt::format("{}/pagemap-{}.img", partial_, process.pid);
  FARPAGE_TRY(pagemap, create_file(path));
  FARPAGE_TRY_VOID(write_file(pagemap, path, encode_pagemap(remaining)));
  return sync(pagemap, path);
}

Status RemainingCheckpoint::keep() {
  FARPAGE_TRY_VOID(sync_folder(partial_));
  if (::rename(partial_.c_str(), path_.c_str()) != 0)
    return fail_errno("renaming " + partial_ + " to " + path_);
  kept_ = true;
  const std::string above = std::filesystem::absolute(path_).parent_path();
  return sync_folder(above);
}

}  // namespace farpage::criu
