// Memory: the far memory of a region, whoever pages for it.
#pragma once

#include <span>

#include "base/result.h"
#include "library/include/farpage/region.h"
#include "pager/pager.h"

namespace farpage::library {

// Threads: any. Runs of pages lie inside it. Destruction: no thread touches it any more.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // An access to it may fault.
  virtual std::span<std::byte> bytes() const = 0;
  // How many of its pages may be resident.
  virtual uint64_t local_pages() const = 0;

  // Fetches every page and waits for it; `writable`: the first write does not fault either. The
  // pages may be evicted again at any time. kUnavailable: a page is lost.
  virtual Status prefault(uffd::PageRun run, bool writable) const = 0;
  // Fetches pages soon, while there is room; with FaultMode::kInHandler, before this returns.
  virtual void hint_willneed(uffd::PageRun run) const = 0;
  virtual void hint_cold(uffd::PageRun run) const = 0;
  virtual void advise(uffd::PageRun run, pager::AccessPattern pattern) const = 0;
  // Keeps the pages resident and writable until unpin(). kExhausted: the limit for pins.
  // kUnavailable: a page is lost. After a failure, no page of the run is pinned.
  Status pin(uffd::PageRun run) const;
  virtual void unpin(uffd::PageRun run) const = 0;
  // The pages read as zeros from now on, and are not resident.
  Status discard(uffd::PageRun run) const;

  // As Region::set_local() and Region::stats().
  virtual Status set_local(uint64_t local_bytes) const = 0;
  virtual RegionStats stats() const = 0;

 protected:
  std::span<std::byte> bytes_of(uffd::PageRun run) const {
    return bytes().subspan(run.first.value << kPageShift, size_t{run.pages} << kPageShift);
  }

 private:
  // The pager keeps what is resident of it, and what becomes resident. False: the limit for pins.
  virtual Result<bool> try_pin(uffd::PageRun run) const = 0;
  // The pager forgets the content; the frames stay.
  virtual Status forget(uffd::PageRun run) const = 0;
};

}  // namespace farpage::library
