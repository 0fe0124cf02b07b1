#include "uffd/attached_window.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "uffd/present_pages.h"

namespace farpage::uffd {
namespace {

using handover::Command;
using handover::CommandKind;

constexpr int kAgentNice = -10;
constexpr Nanoseconds kAgentLook = Milliseconds(1);

bool is_kept(const Command& move, uint32_t page) {
  return (move.kept >> page & 1) != 0;
}

}  // namespace

// ---- events ----

size_t AttachedWindow::take_messages(std::span<uffd_msg> messages) {
  const size_t before = std::min(read_ahead_.size(), messages.size());
  std::copy_n(read_ahead_.begin(), before, messages.begin());
  read_ahead_.erase(read_ahead_.begin(), read_ahead_.begin() + static_cast<ptrdiff_t>(before));
  if (!read_ahead_.empty()) return before;
  return before + userfaultfd().read(messages.subspan(before));
}

// The kernel delivers faults before events that are older, so all events of one call are applied
// before its faults. A message is at most two events.
size_t AttachedWindow::read_events(std::span<Event> out) {
  std::array<uffd_msg, kMaxMessages> messages;
  const size_t most = std::min(out.size() / 2, messages.size());
  FARPAGE_CHECK(most > 0, "room for %zu events", out.size());
  // A successor must know that one has been taken and was not applied.
  if (event_pending() || !read_ahead_.empty()) extents()->begin_change();
  const size_t got = take_messages(std::span(messages).first(most));
  size_t stored = 0;
  for (const uffd_msg& message : std::span(messages).first(got))
    if (message.event != UFFD_EVENT_PAGEFAULT) apply(message, out, stored);
  if (!stale_unmaps_.empty() && !event_pending()) stale_unmaps_.clear();
  for (const uffd_msg& message : std::span(messages).first(got))
    if (message.event == UFFD_EVENT_PAGEFAULT) take_fault(message, out, stored);
  return stored;
}

void AttachedWindow::end_reading() {
  if (read_ahead_.empty()) extents()->end_change();
  order_.end_reading();
}

void AttachedWindow::apply(const uffd_msg& message, std::span<Event> out, size_t& stored) {
  if (std::optional<Userfaultfd> child = userfaultfd().child_of(message)) {
    out[stored++] = Forked{make_child(std::move(*child))};
    return;
  }
  const auto& remove = message.arg.remove;
  if (message.event == UFFD_EVENT_REMOVE) {
    note_given_up(remove.start, remove.end);
    give_up(remove.start, remove.end, out, stored);
  } else if (message.event == UFFD_EVENT_UNMAP) {
    unmap(remove.start, remove.end, out, stored);
  } else if (message.event == UFFD_EVENT_REMAP) {
    const auto& remap = message.arg.remap;
    relocate(remap.from, remap.to, remap.len, out, stored);
  }
}

void AttachedWindow::give_up(uint64_t begin, uint64_t end, std::span<Event> out, size_t& stored) {
  Unmapped unmapped{extents()->runs_in(begin, end)};
  std::erase_if(lost_, [&](const Range& range) { return range.intersects({begin, end}); });
  if (!unmapped.runs.empty()) out[stored++] = std::move(unmapped);
}

std::vector<AttachedWindow::Range> AttachedWindow::without(std::span<const Range> ranges,
                                                           const Range& cut) {
  std::vector<Range> left;
  for (const Range& range : ranges) {
    if (range.begin < std::min(range.end, cut.begin))
      left.push_back({range.begin, std::min(range.end, cut.begin)});
    if (std::max(range.begin, cut.end) < range.end)
      left.push_back({std::max(range.begin, cut.end), range.end});
  }
  return left;
}

// Of two calls in two threads the event of the later one may come first: a range that has got other
// pages meanwhile is what they are now.
void AttachedWindow::unmap(uint64_t begin, uint64_t end, std::span<Event> out, size_t& stored) {
  userfaultfd().wake(begin, end - begin);  // a thread that waits there touches nothing any more
  std::vector<Range> rest{{begin, end}};
  for (const Range& stale : stale_unmaps_) rest = without(rest, stale);
  std::erase_if(stale_unmaps_, [&](const Range& stale) { return stale.intersects({begin, end}); });
  Unmapped unmapped;
  for (const Range& range : rest) {
    const std::vector<PageRun> runs = extents()->runs_in(range.begin, range.end);
    unmapped.runs.insert(unmapped.runs.end(), runs.begin(), runs.end());
    extents()->remove(range.begin, range.end);
    std::erase_if(lost_, [&](const Range& lost) { return lost.intersects(range); });
  }
  if (!unmapped.runs.empty()) out[stored++] = std::move(unmapped);
}

// The event of the source's end follows, and one of what was at the destination may.
void AttachedWindow::relocate(uint64_t from, uint64_t to, uint64_t bytes, std::span<Event> out,
                              size_t& stored) {
  userfaultfd().wake(from, bytes);
  stale_unmaps_.push_back({from, from + bytes});
  std::vector<PageRun> runs = extents()->runs_in(from, from + bytes);
  Unmapped replaced{extents()->runs_in(to, to + bytes)};
  if (!replaced.runs.empty()) stale_unmaps_.push_back({to, to + bytes});
  if (runs.empty() || !extents()->move(from, to, bytes)) {
    extents()->remove(to, to + bytes);
    if (!runs.empty()) {
      extents()->remove(from, from + bytes);
      lost_.push_back({to, to + bytes});
      out[stored++] = Moved{std::move(runs)};
    }
  } else {
    out[stored++] = Relocated{std::move(runs)};
  }
  if (!replaced.runs.empty()) out[stored++] = std::move(replaced);
}

// A fault in an extent is an event. Elsewhere the memory is registered because a mapping has grown,
// or was left behind by MREMAP_DONTUNMAP: what is missing there was never written. While an event
// is on its way, which may say something else, the thread is sent to fault once more.
void AttachedWindow::take_fault(const uffd_msg& fault, std::span<Event> out, size_t& stored) {
  const uint64_t address = fault.arg.pagefault.address & ~(kPageBytes - 1);
  if (!read_ahead_.empty()) {
    userfaultfd().wake(address, kPageBytes);
    return;
  }
  if (std::optional<Event> event = decode(fault, *extents());
      event && std::holds_alternative<Fault>(*event)) {
    out[stored++] = std::move(*event);
    return;
  }
  const bool is_lost = std::ranges::any_of(lost_, [&](const Range& range) {
    return range.intersects({address, address + kPageBytes});
  });
  if (is_lost) {
    if (poison_range(address, kPageBytes)) out[stored++] = StrayFault{address};
  } else if ((fault.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) != 0) {
    (void)userfaultfd().write_protect(address, kPageBytes, false);
  } else {
    (void)userfaultfd().zero(address, kPageBytes, ZeroFrames::kShared);
  }
  userfaultfd().wake(address, kPageBytes);
}

void AttachedWindow::wake_strays() {
  constexpr uint64_t kLowest = 1 << 16;
  constexpr uint64_t kHighest = (uint64_t{1} << 47) - kPageBytes;
  userfaultfd().wake(kLowest, kHighest - kLowest);
}

std::unique_ptr<AddressSpace> AttachedWindow::make_child(Userfaultfd userfaultfd) {
  Result<std::unique_ptr<ExtentMap>> copied = extents()->copy_without_window();
  FARPAGE_CHECK(copied, "no memory for the extents of a forked child");
  auto child = std::make_unique<AttachedWindow>(std::move(userfaultfd), std::move(*copied));
  child->lost_ = lost_;
  child->note_fork();
  note_fork();
  return child;
}

void AttachedWindow::note_given_up(uint64_t begin, uint64_t end) {
  const int64_t now = SteadyClock::read().count();
  uint64_t block = begin >> kBlockShift;
  const uint64_t last = (end - 1) >> kBlockShift;
  for (size_t i = 0; block <= last && i < given_up_.size(); ++block, ++i)
    given_up_[block % given_up_.size()].store(now, std::memory_order_relaxed);
}

bool AttachedWindow::was_given_up_lately(PageIndex page) {
  const uint64_t block = address_of(page) >> kBlockShift;
  const int64_t at = given_up_[block % given_up_.size()].load(std::memory_order_relaxed);
  return SteadyClock::read() - Instant(at) < kLately;
}

Status AttachedWindow::find_present(PageRun run, const std::function<void(PageRun)>& found) {
  const Fd pagemap(
      ::open(("/proc/" + std::to_string(pid()) + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap.valid()) return fail_errno("/proc/PID/pagemap");
  Status status;
  for_each_part(run, [&](uint64_t address, uint64_t bytes) {
    const std::optional<PageIndex> first = extents()->find(address);
    if (!first) return true;  // moved meanwhile
    status =
        find_present_pages(pagemap, address, address + bytes, [&](uint64_t begin, uint64_t end) {
          found({PageIndex{first->value + ((begin - address) >> kPageShift)},
                 static_cast<uint32_t>((end - begin) >> kPageShift)});
        });
    return status.has_value();
  });
  return status;
}

// ---- dropping ----

Status AttachedWindow::copy_out(std::span<const PageIndex> present, std::span<std::byte> out) {
  FARPAGE_TRY_VOID(read(present, out));
  for (size_t i = 0; i < present.size(); ++i)
    hashes_.note(present[i], out.subspan(i * kPageBytes, kPageBytes));
  return {};
}

// While an event is unread the moves would be refused, after the pages were copied and written in
// vain.
Status AttachedWindow::prepare_drop(Nanoseconds patience) {
  const Instant end = SteadyClock::read() + patience;
  // It may be about to fault, and nobody could answer that in this section.
  Status idle = agent().await_all(patience);
  while (idle) {
    staging_used_ = false;
    order_.begin_changing();
    if (!event_pending()) return {};
    order_.end_changing();
    if (SteadyClock::read() >= end)
      idle = fail(ErrorCode::kTimedOut, "the program changes its mappings all the time");
    ::sched_yield();
  }
  hashes_.clear();
  return idle;
}

// Whoever reads events waits for the agent, so it must not wait for a CPU itself. Moves that a dead
// pager has asked for and that have not begun would be of ranges as they were then; what it has
// left in the staging area is dropped.
void AttachedWindow::bind(HandedOver& target) {
  staging_address_ = target.staging_address;
  OtherWindow::bind(target);
  if (const pid_t thread = OtherWindow::dropping_thread(); thread != 0)
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kAgentNice);
  agent().cancel(CommandKind::kMoveOut);
  staging_used_ = true;
  drop_staging();
}

bool AttachedWindow::is_own_thread(uint32_t thread) {
  return thread != 0 && has_agent() && static_cast<pid_t>(thread) == agent().agent_thread();
}

void AttachedWindow::drop_staging() {
  (void)agent().post(
      {.address = staging_address_, .pages = staging_pages(), .kind = CommandKind::kDrop});
}

Status AttachedWindow::drop(std::span<const PageRun> runs, std::span<DropResult> results,
                            Nanoseconds patience) {
  moves_.clear();
  parts_.clear();
  results_.assign(runs.size(), DropResult{});
  uint32_t staged = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    FARPAGE_CHECK(runs[i].pages <= kMaxDropRun, "a run of %u pages", runs[i].pages);
    for_each_part(runs[i], [&](uint64_t address, uint64_t bytes) {
      const auto pages = static_cast<uint32_t>(bytes >> kPageShift);
      const std::optional<PageIndex> first = extents()->find(address);
      FARPAGE_CHECK(first, "%#llx is in no extent", static_cast<unsigned long long>(address));
      const Part part{*first, static_cast<uint16_t>(i),
                      static_cast<uint8_t>(first->value - runs[i].first.value)};
      if (staged + pages > staging_pages()) {
        keep(part, pages);
        return true;
      }
      moves_.push_back({.address = address,
                        .pages = pages,
                        .kind = CommandKind::kMoveOut,
                        .staging_page = staged});
      parts_.push_back(part);
      staged += pages;
      return true;
    });
  }
  moves_begun_ = false;
  return await_drop(results, patience);
}

void AttachedWindow::keep(const Part& part, uint32_t pages, bool busy) {
  for (uint32_t p = 0; p < pages; ++p) {
    const uint64_t bit = uint64_t{1} << (part.at + p);
    results_[part.run].kept |= bit;
    if (busy) results_[part.run].busy |= bit;
  }
}

Status AttachedWindow::await_drop(std::span<DropResult> results, Nanoseconds patience) {
  if (!moves_begun_) {
    FARPAGE_TRY_VOID(agent().begin(moves_, patience));
    moves_begun_ = true;
    staging_used_ = true;
  }
  FARPAGE_TRY_VOID(agent().await(moves_, patience));
  for (size_t m = 0; m < moves_.size(); ++m)
    for (uint32_t p = 0; p < moves_[m].pages; ++p)
      if (is_kept(moves_[m], p)) keep(parts_[m].behind(p), 1, moves_[m].result == EBUSY);
  FARPAGE_TRY_VOID(check_moved());
  std::ranges::copy(results_, results.begin());
  return {};
}

// Only what was moved is read: a hole in the staging area would be a fault, which nobody serves in
// this section.
Status AttachedWindow::check_moved() {
  std::array<iovec, kMaxElements> ranges;
  size_t elements = 0;
  size_t pages = 0;
  for (const Command& move : moves_) {
    for (uint32_t p = 0; p < move.pages; ++p) {
      if (is_kept(move, p)) continue;
      const uint64_t address = staging_address_ + ((uint64_t{move.staging_page} + p) << kPageShift);
      ++pages;
      if (elements > 0 && reinterpret_cast<uint64_t>(ranges[elements - 1].iov_base) +
                                  ranges[elements - 1].iov_len ==
                              address) {
        ranges[elements - 1].iov_len += kPageBytes;
      } else {
        ranges[elements++] = {reinterpret_cast<void*>(address), kPageBytes};
      }
    }
  }
  if (pages == 0) return {};
  staged_.resize(pages * kPageBytes);
  const iovec local{staged_.data(), staged_.size()};
  const ssize_t got = ::process_vm_readv(pid(), &local, 1, ranges.data(), elements, 0);
  if (got != static_cast<ssize_t>(staged_.size()))
    return fail(ErrorCode::kUnavailable, "the staging area of the target cannot be read");
  size_t at = 0;
  for (size_t m = 0; m < moves_.size(); ++m) {
    for (uint32_t p = 0; p < moves_[m].pages; ++p) {
      if (is_kept(moves_[m], p)) continue;
      const auto bytes = std::span(staged_).subspan(at++ * kPageBytes, kPageBytes);
      const Part part = parts_[m].behind(p);
      const std::optional<uint64_t> copied = hashes_.find(part.page);
      if (copied && *copied != PageHashes::hash(bytes)) put_back(part, bytes);
    }
  }
  return {};
}

// Until no event is unread nothing can be placed, so events are read ahead, with all others kept
// out until they are applied. One that gives the page up makes a page that seems to have left
// Empty.
void AttachedWindow::put_back(const Part& part, std::span<const std::byte> bytes) {
  while (true) {
    const std::optional<uint64_t> address = place_now(part.page);
    if (!address) return;
    const Outcome outcome =
        userfaultfd().copy(*address, bytes.data(), kPageBytes, Protection::kWritable);
    if (outcome != Outcome::kRetry) break;
    if (!reads_) order_.become_reading();
    reads_ = true;
    extents()->begin_change();
    read_ahead();
  }
  keep(part, 1);
}

// Where the page lies after the events that were read ahead; nullopt: it was given up.
std::optional<uint64_t> AttachedWindow::place_now(PageIndex page) const {
  uint64_t address = address_of(page);
  for (const uffd_msg& message : read_ahead_) {
    const auto& remove = message.arg.remove;
    const auto& remap = message.arg.remap;
    if (message.event == UFFD_EVENT_REMAP) {
      if (address - remap.from < remap.len) address = address - remap.from + remap.to;
    } else if (message.event == UFFD_EVENT_REMOVE || message.event == UFFD_EVENT_UNMAP) {
      if (remove.start <= address && address < remove.end) return std::nullopt;
    }
  }
  return address;
}

bool AttachedWindow::end_drop() {
  hashes_.clear();
  if (staging_used_) drop_staging();
  if (std::exchange(reads_, false)) return true;
  order_.end_changing();
  return false;
}

void AttachedWindow::make_own(PageIndex page) {
  if (!has_agent()) return;
  (void)agent().post({.address = address_of(page), .pages = 1, .kind = CommandKind::kUnshare});
}

// The agent may wait until the event of its own drop is read, and nobody else reads yet. At a page
// that it is to make the target's own it may wait for a worker; what is behind that command drops
// nothing but the staging area (bind()).
Status AttachedWindow::await_agent(Nanoseconds patience) {
  const Instant end = SteadyClock::read() + patience;
  while (true) {
    Status idle = agent().await_all(kAgentLook);
    if (idle || idle.error().code != ErrorCode::kTimedOut || SteadyClock::read() >= end)
      return idle;
    if (agent().is_at(CommandKind::kUnshare)) return {};
    read_ahead();
  }
}

void AttachedWindow::read_ahead() {
  std::array<uffd_msg, kMaxMessages> messages;
  const size_t got = userfaultfd().read(messages);
  read_ahead_.insert(read_ahead_.end(), messages.begin(),
                     messages.begin() + static_cast<ptrdiff_t>(got));
}

}  // namespace farpage::uffd
