#include "uffd/shared_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "base/maps_line.h"
#include "uffd/guest_memory.h"
#include "uffd/kernel_abi.h"

namespace farpage::uffd {
namespace {

constexpr decltype(statfs::f_type) kTmpfs = 0x01021994;  // TMPFS_MAGIC, linux/magic.h
constexpr int kNoHoles = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

std::string hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "%#" PRIx64, number);
  return text;
}

// One mapping of /proc/PID/smaps.
struct SeenMapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  bool shared = false;
  uint64_t resident_kib = 0;
  std::string flags;  // VmFlags, with a blank before and behind each

  bool has(const char* flag) const { return flags.find(flag) != std::string::npos; }
};

// nullopt: it is no first line of a mapping.
std::optional<SeenMapping> first_line(const std::string& line) {
  const std::optional<MapsLine> parsed = parse_maps_line(line);
  if (!parsed) return std::nullopt;
  SeenMapping seen;
  seen.begin = parsed->begin;
  seen.end = parsed->end;
  seen.offset = parsed->offset;
  seen.device = parsed->device;
  seen.inode = parsed->inode;
  seen.shared = parsed->access[3] == 's';
  return seen;
}

// Calls each(mapping) until it fails.
template <typename Each>
Status for_each_mapping(pid_t process, Each each) {
  std::ifstream file("/proc/" + std::to_string(process) + "/smaps");
  std::optional<SeenMapping> seen;
  bool any = false;
  for (std::string line; std::getline(file, line);) {
    if (auto next = first_line(line)) {
      seen = std::move(next);
      any = true;
    } else if (seen && line.starts_with("Rss:")) {
      seen->resident_kib = std::strtoull(line.c_str() + 4, nullptr, 10);
    } else if (seen && line.starts_with("VmFlags:")) {
      seen->flags = line.substr(8) + " ";
      FARPAGE_TRY_VOID(each(*seen));
      seen.reset();
    }
  }
  if (!any)
    return fail(ErrorCode::kDenied, "the mappings of process " + std::to_string(process) +
                                        " cannot be read: run farpage share as its user, or as "
                                        "root, in the same PID namespace");
  return {};
}

// The claim in which it lies as it says; null: none.
const SharedClaim* claim_of(const SeenMapping& seen, std::span<const SharedFile> files,
                            std::span<const SharedClaim> claims) {
  for (const SharedClaim& claim : claims) {
    const SharedFile& file = files[claim.file];
    if (seen.inode == file.inode && seen.device == file.device && seen.begin >= claim.address &&
        seen.end <= claim.address + claim.bytes &&
        seen.offset == claim.offset + (seen.begin - claim.address))
      return &claim;
  }
  return nullptr;
}

Status check_mapping(const SeenMapping& seen, Touched touched) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalid, "the mapping at " + hex(seen.begin) + " " + why);
  };
  if (!seen.shared) return refuse("is private: map it with MAP_SHARED");
  if (!seen.has(" um ") || !seen.has(" ui ") || !seen.has(" uw "))
    return refuse(
        "is not registered in the modes MISSING, MINOR and WP: call UFFDIO_REGISTER before");
  if (!seen.has(" dc "))
    return refuse("would be inherited by a child, which would read zeros: MADV_DONTFORK");
  if (touched == Touched::kRefused && seen.resident_kib > 0)
    return refuse(
        "was touched while another process shared it already: map it, register it, hand "
        "it over, and touch it then");
  return {};
}

}  // namespace

Status check_kernel_for_shared() {
  if (GuestMemory::kernel_can_poison()) return {};
  return fail(ErrorCode::kUnsupported, "shared memory needs Linux 6.6 or newer");
}

Result<SharedFile> adopt_shared_file(Fd descriptor) {
  SharedFile file;
  struct stat status {};
  struct statfs system {};
  const int fd = descriptor.get();
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || ::fstatfs(fd, &system) != 0 ||
      system.f_type != kTmpfs)
    return fail(ErrorCode::kInvalid,
                "a descriptor that was sent is neither a memfd nor a file in a tmpfs (with pages "
                "of 4 KiB)");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR)
    return fail(ErrorCode::kInvalid, "a memfd was not opened for reading and writing");
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals > 0 && (seals & kNoHoles) != 0)
    return fail(ErrorCode::kInvalid, "a memfd is sealed against writing (F_SEAL_WRITE)");
  if (status.st_size <= 0 || static_cast<uint64_t>(status.st_size) % kPageBytes != 0)
    return fail(ErrorCode::kInvalid, "a memfd must have one or more whole pages of 4 KiB");
  file.descriptor = std::move(descriptor);
  file.device = status.st_dev;
  file.inode = status.st_ino;
  file.pages = static_cast<uint64_t>(status.st_size) >> kPageShift;
  return file;
}

Result<Userfaultfd> adopt_shared_userfaultfd(Fd descriptor) {
  FARPAGE_TRY(userfaultfd, Userfaultfd::adopt_sent(std::move(descriptor)));
  constexpr uint64_t kEvents = UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP |
                               UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_FORK |
                               UFFD_FEATURE_SIGBUS;
  if ((userfaultfd.features() & kEvents) != 0)
    return fail(ErrorCode::kInvalid,
                "the userfaultfd has event features: call UFFDIO_API without UFFD_FEATURE_EVENT_* "
                "and UFFD_FEATURE_SIGBUS");
  if ((userfaultfd.features() & shared_features().required) != shared_features().required)
    return fail(ErrorCode::kInvalid,
                "the userfaultfd lacks features: call UFFDIO_API with PAGEFAULT_FLAG_WP, "
                "MISSING_SHMEM, MINOR_SHMEM and WP_HUGETLBFS_SHMEM");
  return userfaultfd;
}

Status check_claims(pid_t process, std::span<const SharedFile> files,
                    std::span<const SharedClaim> claims, Touched touched) {
  std::vector<uint64_t> seen_bytes(claims.size());
  FARPAGE_TRY_VOID(for_each_mapping(process, [&](const SeenMapping& seen) -> Status {
    bool ours = false;
    for (const SharedFile& file : files)
      ours = ours || (seen.inode == file.inode && seen.device == file.device);
    if (!ours) return {};
    const SharedClaim* claim = claim_of(seen, files, claims);
    if (claim == nullptr)
      return fail(ErrorCode::kInvalid,
                  "the process maps the memory at " + hex(seen.begin) +
                      ", too, which is in no region: unmap it, or register and send it");
    seen_bytes[static_cast<size_t>(claim - claims.data())] += seen.end - seen.begin;
    return check_mapping(seen, touched);
  }));
  for (size_t i = 0; i < claims.size(); ++i)
    if (seen_bytes[i] != claims[i].bytes)
      return fail(ErrorCode::kInvalid, "region " + std::to_string(i) + " (at " +
                                           hex(claims[i].address) +
                                           ") is not mapped so by the process that sent it");
  return {};
}

bool maps_between(pid_t process, std::span<const SharedFile> files, uint64_t begin, uint64_t end) {
  std::ifstream file("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(file, line);) {
    const auto seen = first_line(line);
    if (!seen || seen->end <= begin || seen->begin >= end) continue;
    for (const SharedFile& shared : files)
      if (seen->inode == shared.inode && seen->device == shared.device) return true;
  }
  return false;
}

}  // namespace farpage::uffd
