// UserfaultfdSpace: the part common to address spaces of this process and of another one, which
// uses only the userfaultfd.
#pragma once

#include <sys/uio.h>

#include <memory>

#include "uffd/address_space.h"
#include "uffd/extent_map.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {

// Threads: as AddressSpace says. Owns the userfaultfd; shares the extents with who places memory.
class UserfaultfdSpace : public AddressSpace {
 public:
  uint64_t pages() const override { return extents_->pages(); }
  uint64_t address_of(PageIndex page) const override { return extents_->address_of(page); }
  std::vector<PageRun> runs_in(uint64_t begin, uint64_t end) const override {
    return extents_->runs_in(begin, end);
  }
  Status add_extent(uint64_t begin, uint64_t end) override { return extents_->add(begin, end); }
  void remove_extent(uint64_t begin, uint64_t end) override { extents_->remove(begin, end); }
  size_t read_events(std::span<Event> out) override;
  int event_descriptor() const override { return userfaultfd_.fd(); }
  uint64_t features() const { return userfaultfd_.features(); }
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
  UserfaultfdSpace(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents)
      : userfaultfd_(std::move(userfaultfd)), extents_(std::move(extents)) {}

  // The child's address space, whose events this descriptor delivers.
  virtual std::unique_ptr<AddressSpace> make_child(Userfaultfd userfaultfd) = 0;

  const std::shared_ptr<ExtentMap>& extents() const { return extents_; }
  // Calls each(address, bytes) for the parts of a run that lie together, until it returns false.
  // Pages that are in no extent are left out.
  template <typename Each>
  void for_each_part(PageRun run, Each each) const {
    while (run.pages > 0) {
      const uint32_t pages = extents_->consecutive(run);
      if (pages > 0 && !each(address_of(run.first), uint64_t{pages} << kPageShift)) return;
      const uint32_t step = pages > 0 ? pages : 1;
      run = {PageIndex{run.first.value + step}, run.pages - step};
    }
  }

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

  Userfaultfd& userfaultfd() { return userfaultfd_; }
  Status poison_range(uint64_t address, uint64_t bytes);
  // Of a call that places pages: memory that seems to be gone may only be moving.
  Outcome unless_moving(Outcome outcome) const;

 private:
  Outcome ask() const;
  Outcome write_protect(PageRun run, bool on) const;

  Userfaultfd userfaultfd_;
  const std::shared_ptr<ExtentMap> extents_;
};

}  // namespace farpage::uffd
