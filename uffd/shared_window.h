// SharedWindow: memory that several processes map from the same files (memfds), as one address
// space with a userfaultfd for each process. One copy of a page is in the cache of its file,
// whatever the number of mappings; it counts once, leaves once, and comes back once.
//
// Pages are numbered through the files, one after the other: page p of a file is `first + p`.
// Addresses here are those numbers times 4096: each process has addresses of its own.
//
// How a page is where, of rules that tests/kernel/uffd/shared_window_test.cc checks:
//  - not in the cache: a touch in any process is a MISSING fault. UFFDIO_COPY through that process
//    puts it into the cache and maps it there.
//  - in the cache, not mapped by the process that touches it: a MINOR fault, answered here by
//    UFFDIO_CONTINUE. The engine does not see it.
//  - mapped and write-protected: a write is a WP fault, whichever process writes.
// It leaves by fallocate(PUNCH_HOLE), which takes it out of the cache and out of all mappings.
//
// Races:
//  - A process maps a page between its copy_out() and the hole: it maps it as protected, since
//    protect() has said so (flags_, under the lock of the block), and the hole takes the
//    mapping away. The next touch is MISSING, and waits for the engine.
//  - A process writes while another one's mapping is protected: protect() returns when all mappings
//    are, and only then copy_out() reads. A write in between is in what is read.
//  - UFFDIO_CONTINUE that meets a hole: EFAULT. The fault is MISSING then.
//  - UFFDIO_CONTINUE that meets protect(): both hold the lock of the block, so a page is never
//    mapped as writable by what was true before.
//  - Marks of write protection that a hole leaves in page tables are overwritten by UFFDIO_COPY and
//    UFFDIO_CONTINUE, but make UFFDIO_POISON fail: poison() removes them first.
//  - Two processes fault on one absent page: the second message may be read while the first is
//    answered. Each reader notes its process (waiting_) before the engine sees the fault; who
//    places the page maps it for all that are noted. One that is noted later finds the page
//    present.
//  - A process unmaps a part: nobody writes through it, so it need not be protected there.
//  - A hole in a huge page that the kernel cannot split: the page stays in the cache, as zeros. Its
//    content is with the replicas: install() overwrites it (kDropped).
//  - A process ends: its userfaultfd answers ESRCH, and counts no more. The last one ends the
//  space.
//  - A process maps the file without a userfaultfd: it reads zeros where a page is away, and its
//    writes may be lost. Nothing here can see it: shared_memory.h refuses what it can find. Zeros
//    that its touch has put into the cache are overwritten as above, for the others.
//  - A page that a device writes to (O_DIRECT, VFIO) while it leaves: what is written after
//    copy_out() is lost. See "Pinned pages and DMA: a known limit" in design-notes.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "uffd/address_space.h"
#include "uffd/userfaultfd.h"

struct uffd_msg;

namespace farpage::uffd {

// A file, by its identity, and its pages.
struct SharedFile {
  Fd descriptor;  // open for reading and writing
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t pages = 0;

  bool is_same(const SharedFile& other) const {
    return device == other.device && inode == other.inode;
  }
};

// A part of the memory as one process has mapped and registered it (MISSING, MINOR and WP).
struct SharedMapping {
  uint64_t address = 0;
  PageRun run;
};

// Threads: as AddressSpace says. join() and leave(): one thread at a time.
// Invariants:
//  1. from the return of protect() to the next unprotect(), install() or zero() of a page no
//     process can write to it without a kWriteProtected fault;
//  2. a page that is kKnown is in the cache, or is being dropped.
class SharedWindow final : public AddressSpace {
 public:
  static constexpr size_t kMaxMembers = 8;  // processes: bits of waiting_

  static Result<std::unique_ptr<SharedWindow>> create(std::vector<SharedFile> files);
  ~SharedWindow() override = default;

  const std::vector<SharedFile>& files() const { return files_; }
  // The number of page 0 of a file.
  PageIndex first_page(size_t file) const { return firsts_[file]; }

  // A further process, under a number of its own. Its mappings are disjoint in the memory, and each
  // lies in one file. kExhausted: kMaxMembers are there.
  Status join(uint32_t number, Userfaultfd userfaultfd, std::vector<SharedMapping> mappings,
              pid_t process);
  void leave(uint32_t number);
  // Ends the registrations of all processes: no page is away, and none will be.
  Status unregister();
  size_t member_count() const { return members()->size(); }
  bool is_member_alive(uint32_t number) const;
  bool has_mapped(uint32_t number, uint64_t begin, uint64_t end) const;

  uint64_t pages() const override { return pages_; }
  uint64_t address_of(PageIndex page) const override { return page.value << kPageShift; }
  std::vector<PageRun> runs_in(uint64_t begin, uint64_t end) const override;
  Status add_extent(uint64_t begin, uint64_t end) override;
  void remove_extent(uint64_t begin, uint64_t end) override;
  size_t read_events(std::span<Event> out) override;
  int event_descriptor() const override { return epoll_.get(); }
  Outcome install(PageIndex first, std::span<const std::byte> bytes,
                  Protection protection) override;
  ZeroResult zero(PageRun run, ZeroFrames frames) override;
  Outcome protect(PageRun run) override;
  Outcome unprotect(PageRun run) override;
  // By the mapping of a process, so that an absent page is a fault.
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override;
  // By the file: no mapping is touched, and no page becomes present.
  Status copy_out(std::span<const PageIndex> present, std::span<std::byte> out) override;
  Status drop(std::span<const PageRun> runs, std::span<DropResult> results,
              Nanoseconds patience) override;
  Status await_drop(std::span<DropResult> /*results*/, Nanoseconds /*patience*/) override {
    return {};  // drop() has ended
  }
  Status poison(PageRun run) override;
  Status find_present(PageRun run, const std::function<void(PageRun)>& found) override;
  bool event_pending() override { return false; }  // shared_features()
  bool alive() override;
  void wake(PageRun run) override;

 private:
  // A process. Its userfaultfd stays open until the last reader of the list has left.
  struct Member {
    Member(uint32_t number_of_member, uint8_t bit_of_member, pid_t pid, Userfaultfd descriptor,
           std::vector<SharedMapping> its_mappings);

    const uint32_t number;
    const uint8_t bit;  // of waiting_
    const pid_t process;
    Userfaultfd userfaultfd;
    std::vector<SharedMapping> mappings;    // by page number
    std::vector<SharedMapping> by_address;  // the same, by address
    std::atomic<bool> gone{false};

    std::optional<PageIndex> page_at(uint64_t address) const;
    // The first mapping that ends behind the page, or the end.
    std::vector<SharedMapping>::const_iterator from(PageIndex page) const;
    // The address of the page, and how many pages of the run are mapped from there on.
    struct Part {
      uint64_t address = 0;
      uint32_t pages = 0;
    };
    std::optional<Part> find(PageRun run) const;
    // Calls each(address, bytes) for what is mapped of the run.
    template <typename Each>
    void for_each_part(PageRun run, Each each) const;
    bool is_alive() const;
    // Of what has been unmapped, wholly or in part: true.
    bool is_unmapped(std::span<const SharedFile> files, uint64_t address, uint64_t bytes) const;
  };
  using Members = std::vector<std::shared_ptr<Member>>;

  // What is true of a page, under the lock of its block.
  enum Flag : uint8_t {
    kKnown = 1,     // it has been placed, or found: the engine knows of it
    kWritable = 2,  // a new mapping of it may be writable; only beside kKnown
    kDropped = 4,   // by us, and nobody has placed it since; never beside kKnown
  };
  static constexpr size_t kLocks = 64;
  static constexpr uint64_t kBlockPages = 512;

  SharedWindow(std::vector<SharedFile> files, std::vector<PageIndex> firsts, uint64_t pages,
               Mapping flags, Mapping waiting, Fd epoll);

  std::shared_ptr<const Members> members() const;
  size_t file_of(PageIndex page) const;
  // How many pages of the run are in the file of the first one.
  uint32_t in_one_file(PageRun run) const;
  off_t offset_of(PageIndex page, size_t file) const;

  Mutex& lock_of(PageIndex page) { return locks_[page.value / kBlockPages % kLocks]; }
  uint8_t& flags(PageIndex page) const;
  std::atomic<uint8_t>& waiting(PageIndex page) const;
  // Calls each(part) for the parts of the run in each block, with its lock.
  template <typename Each>
  void for_each_block(PageRun run, Each each);
  void set_flags(PageRun run, uint8_t value);
  // Of pages that were in the cache: what is known of them stays.
  void note_present(PageRun run);

  std::optional<Event> event_of(Member& member, const uffd_msg& message);
  // A page that is in the cache. False: it is none that is known, or is there no more.
  bool map_known(Member& member, PageIndex page, uint64_t address);
  void map_for(const Members& members, PageIndex page, uint8_t waiting);
  Outcome install_part(const Members& members, PageRun run, std::span<const std::byte> bytes,
                       Protection protection);
  Outcome install_in_file(const Members& members, PageRun run, std::span<const std::byte> bytes);
  Outcome write_file(PageRun run, std::span<const std::byte> bytes) const;
  // Is some page of the run in the cache?
  bool is_any_cached(PageRun run) const;
  // It was dropped, and zeros are in its place, which no process that is served has put there.
  bool is_dropped_zeros(PageIndex page);
  void map_for_waiting(const Members& members, PageRun run, uint8_t but);
  Outcome write_protect(PageRun run, bool on);

  const std::vector<SharedFile> files_;
  const std::vector<PageIndex> firsts_;
  const uint64_t pages_;
  const Mapping flags_;    // one byte for each page: Flag
  const Mapping waiting_;  // one byte for each page: members whose faults the engine has
  const Fd epoll_;
  mutable std::array<Mutex, kLocks> locks_;
  mutable Mutex members_mutex_;  // held for a copy of the pointer
  std::shared_ptr<const Members> members_ FARPAGE_GUARDED_BY(members_mutex_);
  std::atomic<uint32_t> reads_first_{0};  // which member's messages are read first
};

}  // namespace farpage::uffd
