#include "uffd/shared_window.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "uffd/kernel_abi.h"
#include "uffd/shared_memory.h"

namespace farpage::uffd {
namespace {

constexpr size_t kMaxMessages = 16;  // of one process, in one call

uint64_t bytes_of(uint64_t pages) {
  return pages << kPageShift;
}

PageIndex behind(PageIndex page, uint64_t pages) {
  return PageIndex{page.value + pages};
}

}  // namespace

// ---- processes ----

SharedWindow::Member::Member(uint32_t number_of_member, uint8_t bit_of_member, pid_t pid,
                             Userfaultfd descriptor, std::vector<SharedMapping> its_mappings)
    : number(number_of_member),
      bit(bit_of_member),
      process(pid),
      userfaultfd(std::move(descriptor)),
      mappings(std::move(its_mappings)),
      by_address(mappings) {
  std::ranges::sort(mappings, {}, [](const SharedMapping& mapping) { return mapping.run.first; });
  std::ranges::sort(by_address, {}, &SharedMapping::address);
}

std::optional<PageIndex> SharedWindow::Member::page_at(uint64_t address) const {
  auto after = std::upper_bound(
      by_address.begin(), by_address.end(), address,
      [](uint64_t at, const SharedMapping& mapping) { return at < mapping.address; });
  if (after == by_address.begin()) return std::nullopt;
  const SharedMapping& mapping = *--after;
  const uint64_t page = (address - mapping.address) >> kPageShift;
  if (page >= mapping.run.pages) return std::nullopt;
  return behind(mapping.run.first, page);
}

std::vector<SharedMapping>::const_iterator SharedWindow::Member::from(PageIndex page) const {
  return std::upper_bound(mappings.begin(), mappings.end(), page,
                          [](PageIndex at, const SharedMapping& mapping) {
                            return at.value < mapping.run.first.value + mapping.run.pages;
                          });
}

std::optional<SharedWindow::Member::Part> SharedWindow::Member::find(PageRun run) const {
  const auto at = from(run.first);
  if (at == mappings.end() || run.first < at->run.first) return std::nullopt;
  const uint64_t before = run.first.value - at->run.first.value;
  return Part{at->address + bytes_of(before),
              static_cast<uint32_t>(std::min<uint64_t>(run.pages, at->run.pages - before))};
}

template <typename Each>
void SharedWindow::Member::for_each_part(PageRun run, Each each) const {
  const uint64_t end = run.first.value + run.pages;
  for (auto at = from(run.first); at != mappings.end() && at->run.first.value < end; ++at) {
    const uint64_t begin = std::max(run.first.value, at->run.first.value);
    const uint64_t stop = std::min<uint64_t>(end, at->run.first.value + at->run.pages);
    each(at->address + bytes_of(begin - at->run.first.value), bytes_of(stop - begin));
  }
}

bool SharedWindow::Member::is_alive() const {
  return !gone.load(std::memory_order_relaxed) &&
         userfaultfd.write_protect(kPageBytes, kPageBytes, true) != Outcome::kProcessGone;
}

bool SharedWindow::Member::is_unmapped(std::span<const SharedFile> files, uint64_t address,
                                       uint64_t bytes) const {
  return !maps_between(process, files, address, address + bytes);
}

Result<std::unique_ptr<SharedWindow>> SharedWindow::create(std::vector<SharedFile> files) {
  std::vector<PageIndex> firsts;
  uint64_t pages = 0;
  for (const SharedFile& file : files) {
    firsts.push_back(PageIndex{pages});
    pages += file.pages;
  }
  FARPAGE_TRY(flags, Mapping::anonymous(pages));
  FARPAGE_TRY(waiting, Mapping::anonymous(pages));
  FARPAGE_TRY(epoll, Fd::from_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  return std::unique_ptr<SharedWindow>(new SharedWindow(std::move(files), std::move(firsts), pages,
                                                        std::move(flags), std::move(waiting),
                                                        std::move(epoll)));
}

SharedWindow::SharedWindow(std::vector<SharedFile> files, std::vector<PageIndex> firsts,
                           uint64_t pages, Mapping flags, Mapping waiting, Fd epoll)
    : files_(std::move(files)),
      firsts_(std::move(firsts)),
      pages_(pages),
      flags_(std::move(flags)),
      waiting_(std::move(waiting)),
      epoll_(std::move(epoll)),
      members_(std::make_shared<Members>()) {}

std::shared_ptr<const SharedWindow::Members> SharedWindow::members() const {
  const MutexLock lock(members_mutex_);
  return members_;
}

Status SharedWindow::join(uint32_t number, Userfaultfd userfaultfd,
                          std::vector<SharedMapping> mappings, pid_t process) {
  const auto before = members();
  uint32_t bits = 0;
  for (const auto& member : *before) bits |= member->bit;
  if (bits == UINT8_MAX)
    return fail(ErrorCode::kExhausted, "8 processes share this memory already");
  const auto bit = static_cast<uint8_t>((bits + 1) & ~bits);  // the lowest that is free
  auto member =
      std::make_shared<Member>(number, bit, process, std::move(userfaultfd), std::move(mappings));
  auto after = std::make_shared<Members>(*before);
  after->push_back(member);
  {
    const MutexLock lock(members_mutex_);
    members_ = std::move(after);
  }
  // From here on its messages are read.
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, member->userfaultfd.fd(), &event) != 0) {
    Status failed = fail_errno("watching the faults of a process");
    leave(number);
    return failed;
  }
  return {};
}

void SharedWindow::leave(uint32_t number) {
  auto after = std::make_shared<Members>(*members());
  std::erase_if(*after, [&](const std::shared_ptr<Member>& member) {
    if (member->number != number) return false;
    member->gone.store(true, std::memory_order_relaxed);
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, member->userfaultfd.fd(), nullptr);
    return true;
  });
  const MutexLock lock(members_mutex_);
  members_ = std::move(after);
}

Status SharedWindow::unregister() {
  Status status;
  const auto list = members();
  for (const auto& member : *list) {
    for (const SharedMapping& mapping : member->mappings) {
      const Status ended =
          member->userfaultfd.unregister_range(mapping.address, bytes_of(mapping.run.pages));
      if (!ended && member->is_alive() &&
          !member->is_unmapped(files_, mapping.address, bytes_of(mapping.run.pages)))
        status = ended;
    }
  }
  return status;
}

bool SharedWindow::has_mapped(uint32_t number, uint64_t begin, uint64_t end) const {
  const auto list = members();
  return std::ranges::any_of(*list, [&](const std::shared_ptr<Member>& member) {
    return member->number == number &&
           std::ranges::any_of(member->mappings, [&](const SharedMapping& mapping) {
             return mapping.address < end && begin < mapping.address + bytes_of(mapping.run.pages);
           });
  });
}

bool SharedWindow::is_member_alive(uint32_t number) const {
  const auto list = members();
  return std::ranges::any_of(*list, [&](const std::shared_ptr<Member>& member) {
    return member->number == number && member->is_alive();
  });
}

bool SharedWindow::alive() {
  const auto list = members();
  return std::ranges::any_of(
      *list, [](const std::shared_ptr<Member>& member) { return member->is_alive(); });
}

// ---- pages and their places ----

size_t SharedWindow::file_of(PageIndex page) const {
  FARPAGE_CHECK(page.value < pages_, "page %llu", static_cast<unsigned long long>(page.value));
  const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), page);
  return static_cast<size_t>(after - firsts_.begin()) - 1;
}

uint32_t SharedWindow::in_one_file(PageRun run) const {
  const size_t file = file_of(run.first);
  const uint64_t left = firsts_[file].value + files_[file].pages - run.first.value;
  return static_cast<uint32_t>(std::min<uint64_t>(run.pages, left));
}

off_t SharedWindow::offset_of(PageIndex page, size_t file) const {
  return static_cast<off_t>(bytes_of(page.value - firsts_[file].value));
}

std::vector<PageRun> SharedWindow::runs_in(uint64_t begin, uint64_t end) const {
  std::vector<PageRun> runs;
  const uint64_t last = std::min(pages_, end >> kPageShift);
  for (uint64_t page = begin >> kPageShift; page < last;) {
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(last - page, UINT32_MAX));
    const PageRun run{PageIndex{page}, in_one_file({PageIndex{page}, most})};
    runs.push_back(run);
    page += run.pages;
  }
  return runs;
}

Status SharedWindow::add_extent(uint64_t /*begin*/, uint64_t /*end*/) {
  return fail(ErrorCode::kUnsupported, "memory that is shared does not grow");
}

void SharedWindow::remove_extent(uint64_t /*begin*/, uint64_t /*end*/) {}

uint8_t& SharedWindow::flags(PageIndex page) const {
  return reinterpret_cast<uint8_t*>(flags_.data())[page.value];
}

std::atomic<uint8_t>& SharedWindow::waiting(PageIndex page) const {
  return reinterpret_cast<std::atomic<uint8_t>*>(waiting_.data())[page.value];
}

template <typename Each>
void SharedWindow::for_each_block(PageRun run, Each each) {
  while (run.pages > 0) {
    const uint64_t left = kBlockPages - run.first.value % kBlockPages;
    const PageRun part{run.first, static_cast<uint32_t>(std::min<uint64_t>(run.pages, left))};
    {
      const MutexLock lock(lock_of(part.first));
      each(part);
    }
    run = {behind(run.first, part.pages), run.pages - part.pages};
  }
}

void SharedWindow::set_flags(PageRun run, uint8_t value) {
  for_each_block(run, [&](PageRun part) { std::fill_n(&flags(part.first), part.pages, value); });
}

// Whether a mapping may be writable is not known of a page that others have placed.
void SharedWindow::note_present(PageRun run) {
  for_each_block(run, [&](PageRun part) {
    for (uint32_t i = 0; i < part.pages; ++i) {
      uint8_t& of_page = flags(behind(part.first, i));
      of_page = static_cast<uint8_t>((of_page & kWritable) | kKnown);
    }
  });
}

// ---- events ----

size_t SharedWindow::read_events(std::span<Event> out) {
  const auto list = members();
  if (list->empty()) return 0;
  std::array<uffd_msg, kMaxMessages> messages;
  size_t stored = 0;
  const size_t first = reads_first_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < list->size() && stored < out.size(); ++i) {
    Member& member = *(*list)[(first + i) % list->size()];
    const size_t most = std::min(messages.size(), out.size() - stored);
    const size_t got = member.userfaultfd.read(std::span(messages).first(most));
    for (const uffd_msg& message : std::span(messages).first(got))
      if (std::optional<Event> event = event_of(member, message)) out[stored++] = std::move(*event);
  }
  return stored;
}

// nullopt: it has been answered.
std::optional<Event> SharedWindow::event_of(Member& member, const uffd_msg& message) {
  if (message.event != UFFD_EVENT_PAGEFAULT) return std::nullopt;
  const uint64_t address = message.arg.pagefault.address & ~uint64_t{kPageBytes - 1};
  const uint64_t kind = message.arg.pagefault.flags;
  const std::optional<PageIndex> page = member.page_at(address);
  if (!page) {
    (void)member.userfaultfd.write_protect(address, kPageBytes, false);
    (void)member.userfaultfd.poison(address, kPageBytes);
    return StrayFault{address};
  }
  Fault fault{.page = *page, .thread = message.arg.pagefault.feat.ptid};
  if ((kind & UFFD_PAGEFAULT_FLAG_WP) != 0) {
    fault.kind = FaultKind::kWriteProtected;
    return fault;
  }
  if ((kind & UFFD_PAGEFAULT_FLAG_MINOR) != 0 && map_known(member, *page, address))
    return std::nullopt;
  fault.kind =
      (kind & UFFD_PAGEFAULT_FLAG_WRITE) != 0 ? FaultKind::kMissingWrite : FaultKind::kMissingRead;
  // Before the engine looks at the page: pairs with the exchange of who places it.
  waiting(*page).fetch_or(member.bit, std::memory_order_seq_cst);
  return fault;
}

bool SharedWindow::map_known(Member& member, PageIndex page, uint64_t address) {
  const MutexLock lock(lock_of(page));
  const uint8_t known = flags(page);
  if ((known & kKnown) == 0) return false;
  const std::optional<Outcome> mapped = member.userfaultfd.map_cached(
      address, (known & kWritable) != 0 ? Protection::kWritable : Protection::kWriteProtected);
  if (!mapped || *mapped == Outcome::kRetry) return false;
  if (*mapped == Outcome::kUnmapped) member.userfaultfd.wake(address, kPageBytes);
  if (*mapped == Outcome::kProcessGone) member.gone.store(true, std::memory_order_relaxed);
  return true;
}

// Of a page that has been placed: for those that wait for it. One that cannot be mapped is woken,
// and faults again.
void SharedWindow::map_for(const Members& members, PageIndex page, uint8_t waiting) {
  for (const auto& member : members) {
    if ((member->bit & waiting) == 0) continue;
    const auto part = member->find({page, 1});
    if (part && !map_known(*member, page, part->address))
      member->userfaultfd.wake(part->address, kPageBytes);
  }
}

// ---- placing ----

Outcome SharedWindow::install(PageIndex first, std::span<const std::byte> bytes,
                              Protection protection) {
  FARPAGE_CHECK(bytes.size() % kPageBytes == 0, "%zu bytes", bytes.size());
  const PageRun run{first, static_cast<uint32_t>(bytes.size() >> kPageShift)};
  if (in_one_file(run) < run.pages) return Outcome::kUnmapped;
  return install_part(*members(), run, bytes, protection);
}

Outcome SharedWindow::install_part(const Members& members, PageRun run,
                                   std::span<const std::byte> bytes, Protection protection) {
  // Of several, UFFDIO_COPY does not tell which were there: page by page.
  if (run.pages > 1) {
    if (is_any_cached(run)) return Outcome::kUnmapped;
    // What a copy that stops in the middle has placed is no leftover of a drop.
    set_flags(run, 0);
  }
  const uint8_t asked = waiting(run.first).load(std::memory_order_seq_cst);
  // Those that wait first: the page is mapped where it is wanted.
  for (const bool waits : {true, false}) {
    for (const auto& member : members) {
      if (((member->bit & asked) != 0) != waits || member->gone.load(std::memory_order_relaxed))
        continue;
      const auto part = member->find(run);
      if (!part || part->pages < run.pages) continue;
      const Outcome outcome =
          member->userfaultfd.copy(part->address, bytes.data(), bytes.size(), protection);
      switch (outcome) {
        case Outcome::kProcessGone:
          member->gone.store(true, std::memory_order_relaxed);
          continue;
        case Outcome::kUnmapped:  // there, at least
          continue;
        case Outcome::kRetry:
          return outcome;
        case Outcome::kDone:
          set_flags(run, protection == Protection::kWritable ? kKnown | kWritable : kKnown);
          map_for_waiting(members, run, member->bit);
          return outcome;
        case Outcome::kAlreadyPresent:
          if (run.pages == 1 && is_dropped_zeros(run.first))
            return install_in_file(members, run, bytes);
          note_present(run);
          map_for_waiting(members, run, 0);
          return outcome;
      }
    }
  }
  if (run.pages > 1) return Outcome::kUnmapped;  // no process maps all of it: page by page
  return install_in_file(members, run, bytes);
}

Outcome SharedWindow::install_in_file(const Members& members, PageRun run,
                                      std::span<const std::byte> bytes) {
  const Outcome written = write_file(run, bytes);
  if (written == Outcome::kDone) {
    set_flags(run, kKnown);
    map_for_waiting(members, run, 0);
  }
  return written;
}

// A page that no process has mapped, and that one may map again, or zeros. kUnmapped: the file is
// shorter.
Outcome SharedWindow::write_file(PageRun run, std::span<const std::byte> bytes) const {
  const size_t file = file_of(run.first);
  const int fd = files_[file].descriptor.get();
  const off_t at = offset_of(run.first, file);
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size < at + static_cast<off_t>(bytes.size()))
    return Outcome::kUnmapped;
  const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), at);
  return written == static_cast<ssize_t>(bytes.size()) ? Outcome::kDone : Outcome::kRetry;
}

bool SharedWindow::is_any_cached(PageRun run) const {
  const size_t file = file_of(run.first);
  const off_t begin = offset_of(run.first, file);
  const off_t found = ::lseek(files_[file].descriptor.get(), begin, SEEK_DATA);
  return found >= 0 && found < begin + static_cast<off_t>(bytes_of(run.pages));
}

bool SharedWindow::is_dropped_zeros(PageIndex page) {
  {
    const MutexLock lock(lock_of(page));
    if ((flags(page) & kDropped) == 0) return false;
  }
  std::array<std::byte, kPageBytes> bytes;
  return copy_out({&page, 1}, bytes) &&
         std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

// `but`: the process by which they were placed.
void SharedWindow::map_for_waiting(const Members& members, PageRun run, uint8_t but) {
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page = behind(run.first, i);
    if (waiting(page).load(std::memory_order_seq_cst) == 0) continue;
    const uint8_t waited = waiting(page).exchange(0, std::memory_order_seq_cst);
    const auto others = static_cast<uint8_t>(waited & ~but);
    if (others != 0) map_for(members, page, others);
  }
}

ZeroResult SharedWindow::zero(PageRun run, ZeroFrames /*frames*/) {
  FARPAGE_CHECK(run.pages <= kMaxZeroRun, "%u pages", run.pages);
  const auto list = members();
  const PageRun part{run.first, in_one_file(run)};
  const uint8_t asked = waiting(run.first).load(std::memory_order_seq_cst);
  bool any_alive = false;
  for (const bool waits : {true, false}) {
    for (const auto& member : *list) {
      if (((member->bit & asked) != 0) != waits || member->gone.load(std::memory_order_relaxed))
        continue;
      const auto mapped = member->find(part);
      any_alive = true;
      if (!mapped) continue;
      // Each page gets a frame: there is no shared page of zeros in a file.
      ZeroResult result =
          member->userfaultfd.zero(mapped->address, bytes_of(mapped->pages), ZeroFrames::kShared);
      if (result.outcome == Outcome::kProcessGone)
        member->gone.store(true, std::memory_order_relaxed);
      if (result.pages == 0 &&
          (result.outcome == Outcome::kProcessGone || result.outcome == Outcome::kUnmapped))
        continue;
      const PageRun placed{run.first, result.pages};
      set_flags(placed, kKnown | kWritable);
      map_for_waiting(*list, placed, member->bit);
      if (result.outcome == Outcome::kAlreadyPresent) {
        const PageRun found{behind(run.first, result.pages), 1};
        note_present(found);
        map_for_waiting(*list, found, 0);
      }
      if (result.outcome == Outcome::kDone && result.pages < run.pages)
        result.outcome = Outcome::kUnmapped;
      return result;
    }
  }
  return {0, any_alive ? Outcome::kUnmapped : Outcome::kProcessGone};
}

// ---- protection ----

Outcome SharedWindow::protect(PageRun run) {
  return write_protect(run, true);
}

Outcome SharedWindow::unprotect(PageRun run) {
  return write_protect(run, false);
}

Outcome SharedWindow::write_protect(PageRun run, bool on) {
  bool any_alive = false;
  Outcome outcome = Outcome::kDone;
  for_each_block(run, [&](PageRun part) {
    for (uint32_t i = 0; i < part.pages; ++i) {
      uint8_t& of_page = flags(behind(part.first, i));
      const bool writable = !on && (of_page & kKnown) != 0;
      of_page = static_cast<uint8_t>((of_page & ~kWritable) | (writable ? kWritable : 0));
    }
    // Under the lock: a process whose faults have been answered under it is in the list.
    const auto list = members();
    for (const auto& member : *list) {
      if (member->gone.load(std::memory_order_relaxed)) continue;
      any_alive = true;
      member->for_each_part(part, [&](uint64_t address, uint64_t bytes) {
        switch (member->userfaultfd.write_protect(address, bytes, on)) {
          case Outcome::kProcessGone:
            member->gone.store(true, std::memory_order_relaxed);
            break;
          case Outcome::kRetry:
            outcome = Outcome::kRetry;
            break;
          case Outcome::kUnmapped:
            if (outcome == Outcome::kDone && !member->is_unmapped(files_, address, bytes))
              outcome = Outcome::kUnmapped;
            break;
          case Outcome::kDone:
          case Outcome::kAlreadyPresent:
            break;
        }
      });
    }
  });
  return any_alive ? outcome : Outcome::kProcessGone;
}

// ---- leaving ----

Status SharedWindow::read(std::span<const PageIndex> present, std::span<std::byte> out) {
  FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
  const auto list = members();
  for (size_t i = 0; i < present.size(); ++i) {
    const iovec to{out.data() + i * kPageBytes, kPageBytes};
    bool is_read = false;
    errno = 0;
    for (const auto& member : *list) {
      const auto part = member->find({present[i], 1});
      if (!part || is_read) continue;
      const iovec from{reinterpret_cast<void*>(part->address), kPageBytes};
      is_read = ::process_vm_readv(member->process, &to, 1, &from, 1, 0) ==
                static_cast<ssize_t>(kPageBytes);
    }
    if (is_read) continue;
    if (errno == EPERM || errno == EACCES)
      return fail(ErrorCode::kDenied,
                  "the memory of the processes may not be read: run farpage share as root, or set "
                  "sysctl kernel.yama.ptrace_scope=0");
    return fail(ErrorCode::kConflict, "no process can read that page");
  }
  return {};
}

Status SharedWindow::copy_out(std::span<const PageIndex> present, std::span<std::byte> out) {
  FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
  for (size_t done = 0; done < present.size();) {
    const size_t file = file_of(present[done]);
    const uint64_t end = firsts_[file].value + files_[file].pages;
    size_t count = 1;
    while (done + count < present.size() &&
           present[done + count].value == present[done].value + count &&
           present[done + count].value < end)
      ++count;
    const ssize_t got = ::pread(files_[file].descriptor.get(), out.data() + done * kPageBytes,
                                count * kPageBytes, offset_of(present[done], file));
    if (got < 0) return fail_errno("reading a page of a shared file");
    if (static_cast<size_t>(got) != count * kPageBytes)
      return fail(ErrorCode::kConflict, "a shared file has become shorter");
    done += count;
  }
  return {};
}

Status SharedWindow::drop(std::span<const PageRun> runs, std::span<DropResult> results,
                          Nanoseconds /*patience*/) {
  for (size_t i = 0; i < runs.size(); ++i) {
    results[i] = {};
    // A MINOR fault from here on is the engine's, which knows that the pages are being dropped.
    set_flags(runs[i], kDropped);
    for (PageRun rest = runs[i]; rest.pages > 0;) {
      const PageRun part{rest.first, in_one_file(rest)};
      const size_t file = file_of(part.first);
      if (::fallocate(files_[file].descriptor.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      offset_of(part.first, file), static_cast<off_t>(bytes_of(part.pages))) != 0)
        results[i].sys_errno = errno;
      rest = {behind(rest.first, part.pages), rest.pages - part.pages};
    }
  }
  return {};
}

Status SharedWindow::poison(PageRun run) {
  set_flags(run, 0);
  bool retry = false;
  const auto list = members();
  for (const auto& member : *list) {
    member->for_each_part(run, [&](uint64_t address, uint64_t bytes) {
      (void)member->userfaultfd.write_protect(address, bytes, false);
      retry = member->userfaultfd.poison(address, bytes) == Outcome::kRetry || retry;
    });
  }
  if (retry) return fail(ErrorCode::kUnavailable, "a process has no memory for the mark");
  return {};
}

void SharedWindow::wake(PageRun run) {
  const auto list = members();
  for (const auto& member : *list)
    member->for_each_part(
        run, [&](uint64_t address, uint64_t bytes) { member->userfaultfd.wake(address, bytes); });
}

Status SharedWindow::find_present(PageRun run, const std::function<void(PageRun)>& found) {
  while (run.pages > 0) {
    const PageRun part{run.first, in_one_file(run)};
    const size_t file = file_of(part.first);
    const int fd = files_[file].descriptor.get();
    off_t at = offset_of(part.first, file);
    const off_t end = at + static_cast<off_t>(bytes_of(part.pages));
    while (at < end) {
      const off_t begin = ::lseek(fd, at, SEEK_DATA);
      if (begin < 0 && errno == ENXIO) break;
      if (begin < 0) return fail_errno("finding the pages of a shared file");
      if (begin >= end) break;
      const off_t stop = std::min(end, ::lseek(fd, begin, SEEK_HOLE));
      if (stop <= begin) return fail_errno("finding the holes of a shared file");
      const PageRun present{
          behind(firsts_[file], static_cast<uint64_t>(begin) >> kPageShift),
          static_cast<uint32_t>(static_cast<uint64_t>(stop - begin) >> kPageShift)};
      note_present(present);
      found(present);
      at = stop;
    }
    run = {behind(run.first, part.pages), run.pages - part.pages};
  }
  return {};
}

}  // namespace farpage::uffd
