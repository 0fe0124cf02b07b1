#include "node/slab_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "rdma/file/nameless_file.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace farpage::node {
namespace {

constexpr unsigned kMaxNumaNodes = 1024;  // CONFIG_NODES_SHIFT is at most 10

Status bind_to_numa_node(const Mapping& mapping, int numa_node) {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNumaNodes / kBits> mask{};
  const auto node = static_cast<unsigned>(numa_node);
  if (node >= kMaxNumaNodes)
    return fail(ErrorCode::kInvalid, fmt::format("numa_node {} is out of range", numa_node));
  mask[node / kBits] = 1UL << (node % kBits);
  // The kernel reads one bit less than maxnode (mbind(2), BUGS).
  if (::syscall(SYS_mbind, mapping.data(), mapping.size(), MPOL_BIND, mask.data(),
                kMaxNumaNodes + 1, 0) == 0)
    return {};
  if (errno == EINVAL)
    return fail(ErrorCode::kInvalid,
                fmt::format("numa_node {}: this host has no such memory node; see "
                            "/sys/devices/system/node/has_memory",
                            numa_node));
  return fail_errno(fmt::format("binding a slab to NUMA node {}", numa_node));
}

// For kernels before 5.14, without MADV_POPULATE_WRITE: one write to each page does the same.
void touch_every_page(const Mapping& mapping) {
  for (size_t at = 0; at < mapping.size(); at += kPageBytes)
    *static_cast<volatile std::byte*>(mapping.data() + at) = std::byte{0};
}

Status prefault(const Mapping& mapping) {
  if (::madvise(mapping.data(), mapping.size(), MADV_POPULATE_WRITE) == 0) return {};
  if (errno == EINVAL) {
    touch_every_page(mapping);
    return {};
  }
  return fail(ErrorCode::kExhausted,
              "touching a slab: the kernel has no memory for it; lend less, or raise the memory "
              "limit of the cgroup");
}

tl::unexpected<Error> without_hugepages(const SlabMemoryOptions& options, Error error) {
  if (!options.hugepages || error.sys_errno != ENOMEM)
    return tl::unexpected<Error>(std::move(error));
  return fail(ErrorCode::kExhausted,
              fmt::format("no huge pages left for a slab of {} MiB; reserve more with sysctl "
                          "vm.nr_hugepages, or omit --hugepages",
                          options.slab_bytes >> 20));
}

}  // namespace

Result<OwnedSlabMemory> OwnedSlabMemory::create_file(const SlabMemoryOptions& options) {
  FARPAGE_TRY(file, rdma::file::make_nameless_file(options.folder, options.slab_bytes));
  if (!options.lazy) {
    const Status written = rdma::file::write_zeros(file.get(), 0, options.slab_bytes);
    if (!written) return fail_with(options.folder, written.error());
  }
  void* const reserved = ::mmap(nullptr, options.slab_bytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return fail_errno("reserving the addresses of a slab");
  return OwnedSlabMemory({}, std::move(file), Mapping::adopt(reserved, options.slab_bytes));
}

Result<OwnedSlabMemory> OwnedSlabMemory::create(const SlabMemoryOptions& options) {
  if (!options.folder.empty()) return create_file(options);
  Result<Fd> memfd = create_memfd("farpage-slab", options.slab_bytes, options.hugepages);
  if (!memfd) return without_hugepages(options, std::move(memfd).error());
  Result<Mapping> mapping = Mapping::shared(memfd->get(), options.slab_bytes);
  if (!mapping) return without_hugepages(options, std::move(mapping).error());
  if (options.numa_node >= 0) FARPAGE_TRY_VOID(bind_to_numa_node(*mapping, options.numa_node));
  if (!options.lazy) FARPAGE_TRY_VOID(prefault(*mapping));
  return OwnedSlabMemory(std::move(*memfd), {}, std::move(*mapping));
}

Status OwnedSlabMemory::give_up_pages() {
  if (!memfd_.valid()) return {};
  if (::fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(mapping_.size())) != 0)
    return fail_errno("giving the pages of a slab back");
  return {};
}

}  // namespace farpage::node
