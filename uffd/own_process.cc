#include "uffd/own_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/mapping.h"
#include "uffd/window.h"

namespace farpage::uffd {
namespace {

class OwnWindow final : public WindowAddressSpace {
 public:
  OwnWindow(Userfaultfd userfaultfd, Mapping memory, Fd empty_memfd)
      : WindowAddressSpace(std::move(userfaultfd), reinterpret_cast<uint64_t>(memory.data()),
                           memory.size() >> kPageShift),
        memory_(std::move(memory)),
        empty_memfd_(std::move(empty_memfd)) {}

  // First the descriptor: unmapping a range that is watched waits until somebody reads the event.
  ~OwnWindow() override { close_userfaultfd(); }

  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
    for (size_t i = 0; i < present.size(); ++i)
      std::memcpy(out.data() + i * kPageBytes, memory_.data() + (present[i].value << kPageShift),
                  kPageBytes);
    return {};
  }

  Status drop(std::span<const PageRun> runs, std::span<DropResult> results) override {
    for (size_t i = 0; i < runs.size(); ++i) {
      void* address = reinterpret_cast<void*>(address_of(runs[i].first));
      const bool failed = ::madvise(address, bytes_of(runs[i]), MADV_DONTNEED) != 0;
      results[i].sys_errno = failed ? errno : 0;
    }
    return {};
  }

 protected:
  // This process does not ask for fork events.
  std::unique_ptr<AddressSpace> make_child(Userfaultfd) override { return nullptr; }

  Status poison_by_mapping(uint64_t address, uint64_t bytes) override {
    // Beyond the end of an empty file every touch is SIGBUS.
    void* mapped = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, empty_memfd_.get(), 0);
    if (mapped == MAP_FAILED) return fail_errno("mapping an empty file over a lost page");
    return {};
  }

 private:
  Mapping memory_;
  Fd empty_memfd_;
};

}  // namespace

Result<std::unique_ptr<AddressSpace>> create_own_window(uint64_t pages, bool user_mode_only) {
  FARPAGE_TRY(userfaultfd, Userfaultfd::create(pager_features(), user_mode_only));
  FARPAGE_TRY(memory, Mapping::anonymous(pages << kPageShift));
  if (::madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL)
    return fail_errno("madvise(NOHUGEPAGE)");
  // A child of fork() would read zeros where pages are away: give it SIGSEGV instead.
  if (::madvise(memory.data(), memory.size(), MADV_DONTFORK) != 0)
    return fail_errno("madvise(DONTFORK)");
  FARPAGE_TRY_VOID(
      userfaultfd.register_range(reinterpret_cast<uint64_t>(memory.data()), memory.size()));
  FARPAGE_TRY(empty, Fd::from_call(::memfd_create("farpage-lost", MFD_CLOEXEC), "memfd_create"));
  return std::make_unique<OwnWindow>(std::move(userfaultfd), std::move(memory), std::move(empty));
}

}  // namespace farpage::uffd
