// WindowAddressSpace: the part common to address spaces of this process and of another one, which
// uses only the userfaultfd.
#pragma once

#include <sys/uio.h>

#include <memory>

#include "uffd/address_space.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {

class WindowAddressSpace : public AddressSpace {
 public:
  uint64_t pages() const override { return pages_; }
  uint64_t address_of(PageIndex page) const override { return base_ + (page.value << kPageShift); }
  size_t read_events(std::span<Event> out) override;
  int event_descriptor() const override { return userfaultfd_.fd(); }
  Outcome install(PageIndex first, std::span<const std::byte> bytes,
                  Protection protection) override;
  ZeroResult zero(PageRun run, ZeroFrames frames) override;
  Outcome protect(PageRun run) override;
  Outcome unprotect(PageRun run) override;
  Status poison(PageRun run) override;
  bool event_pending() override;
  bool alive() override;
  void wake(PageRun run) override;

 protected:
  WindowAddressSpace(Userfaultfd userfaultfd, uint64_t base, uint64_t pages)
      : userfaultfd_(std::move(userfaultfd)), base_(base), pages_(pages) {}

  // The child's window, whose events this descriptor delivers.
  virtual std::unique_ptr<AddressSpace> make_child(Userfaultfd userfaultfd) = 0;

  // Kernels before 6.6 have no UFFDIO_POISON: make the range fail by a mapping.
  virtual Status poison_by_mapping(uint64_t address, uint64_t bytes) = 0;

  // Ends the registration: missing pages read as zeros from now on.
  void close_userfaultfd() { userfaultfd_.close(); }

  // The pages' addresses; adjacent pages share an element. Some are left out if the vector is full.
  struct Gathered {
    size_t pages = 0;
    size_t elements = 0;
  };
  Gathered gather(std::span<const PageIndex> pages, std::span<iovec> vector) const;

  static uint64_t bytes_of(PageRun run) { return uint64_t{run.pages} << kPageShift; }

 private:
  Outcome ask() const;
  Status poison_range(uint64_t address, uint64_t bytes);

  Userfaultfd userfaultfd_;
  const uint64_t base_;
  const uint64_t pages_;
};

}  // namespace farpage::uffd
