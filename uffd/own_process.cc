#include "uffd/own_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/mapping.h"
#include "uffd/userfaultfd_space.h"

namespace farpage::uffd {
namespace {

// Newer kernels (6.13) let a process use MADV_DONTNEED on itself through process_madvise: one call,
// and one interrupt to the other cores, for a whole vector. Invalid if this kernel does not.
Result<Fd> probe_vectored_drop() {
  Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  FARPAGE_TRY(page, Mapping::anonymous(kPageBytes, true));
  const iovec vector{page.data(), kPageBytes};
  const long advised = ::syscall(SYS_process_madvise, self.get(), &vector, 1, MADV_DONTNEED, 0);
  if (advised != static_cast<long>(kPageBytes)) self.reset();
  return self;
}

class OwnWindow final : public UserfaultfdSpace {
 public:
  OwnWindow(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents, Mapping memory,
            Fd empty_memfd, Fd self)
      : UserfaultfdSpace(std::move(userfaultfd), std::move(extents)),
        memory_(std::move(memory)),
        empty_memfd_(std::move(empty_memfd)),
        self_(std::move(self)) {}

  // Close the descriptor first: unmapping a registered range waits until its event is read.
  ~OwnWindow() override { close_userfaultfd(); }

  // Not by memcpy: a page that is absent after all may be lost, or the faults of this thread may
  // have no resolver; memcpy would then end in SIGBUS. The kernel returns EFAULT.
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
    constexpr size_t kMaxElements = 256;
    for (size_t done = 0; done < present.size();) {
      std::array<iovec, kMaxElements> from;
      const Gathered gathered = gather(present.subspan(done), from);
      const iovec to{out.data() + done * kPageBytes, gathered.pages * kPageBytes};
      const ssize_t got = ::process_vm_readv(::getpid(), &to, 1, from.data(), gathered.elements, 0);
      if (got < 0) return fail_errno("reading pages of the window");
      if (static_cast<size_t>(got) != to.iov_len)
        return fail(ErrorCode::kConflict, "a page of the window cannot be read");
      done += gathered.pages;
    }
    return {};
  }

  Status drop(std::span<const PageRun> runs, std::span<DropResult> results,
              Nanoseconds /*patience*/) override {
    size_t done = 0;
    while (done < runs.size()) {
      const size_t together = drop_vector(runs.subspan(done));
      std::ranges::fill(results.subspan(done, together), DropResult{});
      done += together;
      if (done == runs.size()) break;
      // A call of its own gets the errno of the run that stopped the vector.
      void* address = reinterpret_cast<void*>(address_of(runs[done].first));
      const bool failed = ::madvise(address, bytes_of(runs[done]), MADV_DONTNEED) != 0;
      results[done++].sys_errno = failed ? errno : 0;
    }
    return {};
  }

  Status await_drop(std::span<DropResult> /*results*/, Nanoseconds /*patience*/) override {
    return {};  // drop() has ended
  }

 protected:
  // This process does not ask for fork events.
  std::unique_ptr<AddressSpace> make_child(Userfaultfd) override { return nullptr; }

  Status poison_by_mapping(uint64_t address, uint64_t bytes) override {
    // Every access beyond the end of an empty file is SIGBUS.
    void* mapped = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, empty_memfd_.get(), 0);
    if (mapped == MAP_FAILED) return fail_errno("mapping an empty file over a lost page");
    return {};
  }

 private:
  // Drops runs from the first on with one call; returns how many.
  size_t drop_vector(std::span<const PageRun> runs) {
    if (!self_.valid()) return 0;
    constexpr size_t kBatch = 256;
    std::array<iovec, kBatch> vector;
    const size_t count = std::min(kBatch, runs.size());
    for (size_t i = 0; i < count; ++i)
      vector[i] = {reinterpret_cast<void*>(address_of(runs[i].first)), bytes_of(runs[i])};
    const long advised =
        ::syscall(SYS_process_madvise, self_.get(), vector.data(), count, MADV_DONTNEED, 0);
    uint64_t bytes = advised < 0 ? 0 : static_cast<uint64_t>(advised);
    size_t dropped = 0;
    for (; dropped < count && bytes >= vector[dropped].iov_len; ++dropped)
      bytes -= vector[dropped].iov_len;
    return dropped;
  }

  Mapping memory_;
  Fd empty_memfd_;
  Fd self_;  // invalid: no vectored drop
};

Result<std::unique_ptr<AddressSpace>> make_window(uint64_t pages, const Features& features,
                                                  bool user_mode_only) {
  FARPAGE_TRY(registered, register_memory(pages, features, user_mode_only));
  auto& [userfaultfd, memory] = registered;
  FARPAGE_TRY(empty, Fd::from_call(::memfd_create("farpage-lost", MFD_CLOEXEC), "memfd_create"));
  FARPAGE_TRY(self, probe_vectored_drop());
  FARPAGE_TRY(extents, ExtentMap::create(reinterpret_cast<uint64_t>(memory.data()), pages, 0));
  return std::make_unique<OwnWindow>(std::move(userfaultfd), std::move(extents), std::move(memory),
                                     std::move(empty), std::move(self));
}

}  // namespace

Result<RegisteredMemory> register_memory(uint64_t pages, const Features& features,
                                         bool user_mode_only) {
  FARPAGE_TRY(userfaultfd, Userfaultfd::create(features, user_mode_only));
  FARPAGE_TRY(memory, Mapping::anonymous(pages << kPageShift));
  if (::madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL)
    return fail_errno("madvise(NOHUGEPAGE)");
  // A child of fork() would read zeros in place of remote pages: give it SIGSEGV instead.
  if (::madvise(memory.data(), memory.size(), MADV_DONTFORK) != 0)
    return fail_errno("madvise(DONTFORK)");
  FARPAGE_TRY_VOID(
      userfaultfd.register_range(reinterpret_cast<uint64_t>(memory.data()), memory.size()));
  return RegisteredMemory{std::move(userfaultfd), std::move(memory)};
}

Result<std::unique_ptr<AddressSpace>> create_own_window(uint64_t pages, bool user_mode_only) {
  return make_window(pages, pager_features(), user_mode_only);
}

Result<std::unique_ptr<AddressSpace>> create_own_sigbus_window(uint64_t pages) {
  return make_window(pages, sigbus_features(), true);
}

}  // namespace farpage::uffd
