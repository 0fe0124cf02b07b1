#include "uffd/attached_window.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/maps_line.h"
#include "uffd/page_hash.h"
#include "uffd/present_pages.h"

namespace farpage::uffd {
namespace {

using handover::Command;
using handover::CommandKind;

constexpr int kAgentNice = -10;
// For up to 64 pages of one drop(). An agent that runs takes some 10 to 50 us for 16.
constexpr Nanoseconds kMovePatience = std::chrono::microseconds(300);
// For a moment without an unread event: a batch of a program that changes its mappings all the time
// has been copied and written by then.
constexpr Milliseconds kQuietPatience{5};
constexpr Nanoseconds kGiveWay = std::chrono::microseconds(40);
// The end of what programs can have mapped.
constexpr uint64_t kHighest = (uint64_t{1} << 47) - kPageBytes;
// An agent that waits for a CPU answers earlier.
constexpr Nanoseconds kStands = Milliseconds(100);
// For a thread that has no CPU. Nobody's faults are answered by this worker meanwhile.
constexpr Nanoseconds kOvertaken = Milliseconds(20);
constexpr Nanoseconds kOvertakenLook = std::chrono::microseconds(100);

bool is_kernel_before(int major, int minor) {
  utsname name{};
  ::uname(&name);
  std::array<int, 2> own{};
  return std::sscanf(name.release, "%d.%d", &own[0], &own[1]) == 2 &&
         own < std::array{major, minor};
}

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
  return before + read_messages(messages.subspan(before));
}

// The kernel delivers faults before events that are older, so all events of one call are applied
// before its faults. A message is at most two events.
size_t AttachedWindow::read_events(std::span<Event> out) {
  std::array<uffd_msg, kMaxMessages> messages;
  const size_t most = std::min(out.size() / 2, messages.size());
  FARPAGE_CHECK(most > 0, "room for %zu events", out.size());
  if (!parked_.empty()) {
    if (is_any_unapplied()) {
      await_overtaken();
    } else if (const size_t given_up = give_up_parked(out); given_up > 0) {
      return given_up;
    }
  }
  // A successor must know that one has been taken and was not applied.
  begin_following(is_any_unapplied());
  const size_t got = take_messages(std::span(messages).first(most));
  size_t stored = 0;
  for (const uffd_msg& message : std::span(messages).first(got)) {
    if (message.event == UFFD_EVENT_PAGEFAULT) continue;
    extents()->begin_change();  // it may have come after the look
    apply(message, out, stored);
  }
  if (!untold_ends_.empty() && !is_any_unapplied()) untold_ends_.clear();
  for (const uffd_msg& message : std::span(messages).first(got))
    if (message.event == UFFD_EVENT_PAGEFAULT) take_fault(message, out, stored);
  return stored;
}

void AttachedWindow::end_reading() {
  if (read_ahead_.empty() && parked_.empty()) extents()->end_change();
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

// The end of an mremap's source says nothing new: other pages may be there by now. Of that and of a
// munmap of the same addresses in another thread it does not matter which is told first. Before
// Linux 6.15 an mremap that also shrinks tells more of its source than it has unmapped.
bool AttachedWindow::is_untold_end(const Range& range) {
  static const bool tells_more = is_kernel_before(6, 15);
  const auto end = std::ranges::find_if(untold_ends_, [&](const Move& move) {
    return move.source.begin == range.begin && move.source.end == range.end;
  });
  const auto longer = std::ranges::find_if(untold_ends_, [&](const Move& move) {
    return move.source.begin == range.begin && range.end < move.source.end;
  });
  if (end == untold_ends_.end() && !(tells_more && longer != untold_ends_.end())) return false;
  untold_ends_.erase(end != untold_ends_.end() ? end : longer);
  return true;
}

// Nobody can have unmapped or moved on what a thread has moved that still stands in its mremap: an
// event of that place is older. MREMAP_DONTUNMAP tells no end of its source, and no thread stands.
std::vector<AttachedWindow::Range> AttachedWindow::without_arrivals(std::vector<Range> ranges,
                                                                    const Range& own) {
  const Instant until = SteadyClock::read() + kOvertaken;
  std::erase_if(untold_ends_, [&](const Move& move) {
    if (move.destination == own || std::ranges::none_of(ranges, [&](const Range& range) {
          return range.intersects(move.destination);
        }))
      return false;
    if (!comes_to_stand_in_change_of(move.source, until)) return true;
    ranges = without(ranges, move.destination);
    return false;
  });
  return ranges;
}

void AttachedWindow::unmap(uint64_t begin, uint64_t end, std::span<Event> out, size_t& stored) {
  userfaultfd().wake(begin, end - begin);  // a thread that waits there touches nothing any more
  if (is_untold_end({begin, end})) return;
  Unmapped unmapped;
  const auto drop = [&](const Range& range) {
    const std::vector<PageRun> runs = extents()->runs_in(range.begin, range.end);
    unmapped.runs.insert(unmapped.runs.end(), runs.begin(), runs.end());
    extents()->remove(range.begin, range.end);
    std::erase_if(lost_, [&](const Range& lost) { return lost.intersects(range); });
  };
  const std::vector<Range> rest = for_each_parked(
      {begin, end}, [&](const Range& /*place*/, const Range& parked) { drop(parked); });
  for (const Range& range : without_arrivals(rest, {})) drop(range);
  if (!unmapped.runs.empty()) out[stored++] = std::move(unmapped);
}

// The event of the source's end follows.
void AttachedWindow::relocate(uint64_t from, uint64_t to, uint64_t bytes, std::span<Event> out,
                              size_t& stored) {
  userfaultfd().wake(from, bytes);
  untold_ends_.push_back({{from, from + bytes}, {to, to + bytes}});
  Relocated relocated{extents()->runs_in(to, to + bytes)};
  const bool has_room = relocated.runs.empty() || park({to, to + bytes});
  Moved lost;
  if (!has_room) {
    extents()->remove(to, to + bytes);
    lost.runs.swap(relocated.runs);
  }
  const auto move = [&](const Range& source, uint64_t destination) {
    const std::vector<PageRun> runs = extents()->runs_in(source.begin, source.end);
    if (runs.empty()) return;
    const uint64_t length = source.end - source.begin;
    const bool followed = has_room && extents()->move(source.begin, destination, length);
    if (!followed) {
      extents()->remove(source.begin, source.end);
      lost_.push_back({destination, destination + length});
    }
    std::vector<PageRun>& told = followed ? relocated.runs : lost.runs;
    told.insert(told.end(), runs.begin(), runs.end());
  };
  // What is parked was there before what is there now.
  const std::vector<Range> rest = for_each_parked(
      {from, from + bytes},
      [&](const Range& place, const Range& parked) { move(parked, place.begin - from + to); });
  for (const Range& source : without_arrivals(rest, {to, to + bytes}))
    move(source, source.begin - from + to);
  if (!relocated.runs.empty()) out[stored++] = std::move(relocated);
  if (!lost.runs.empty()) out[stored++] = std::move(lost);
}

// Two threads: one moves (or unmaps) B, and has not told so yet; the other moves A to B, and tells.
// The kernel tells what an mremap unmaps at its destination before the mremap itself, so pages that
// are still there by what was told have left by a call whose event is to come. Until then they
// have addresses of no process: whatever is asked of the kernel meanwhile it refuses, because of
// that event.
bool AttachedWindow::park(const Range& place) {
  for (const PageRun& run : extents()->runs_in(place.begin, place.end)) {
    const uint64_t begin = address_of(run.first);
    const uint64_t bytes = bytes_of(run);
    if (!extents()->move(begin, next_parking_, bytes)) return false;
    parked_.push_back({{begin, begin + bytes}, next_parking_});
    next_parking_ += bytes;
  }
  return true;
}

template <typename Each>
std::vector<AttachedWindow::Range> AttachedWindow::for_each_parked(const Range& range, Each each) {
  std::vector<Range> wanted{range};
  std::vector<Parked> left;
  for (const Parked& parked : parked_) {
    std::vector<Range> rest{parked.place};
    for (const Range& want : std::vector(wanted)) {
      if (!parked.place.intersects(want)) continue;
      const Range part{std::max(parked.place.begin, want.begin),
                       std::min(parked.place.end, want.end)};
      const uint64_t at = parked.at + (part.begin - parked.place.begin);
      each(part, Range{at, at + (part.end - part.begin)});
      rest = without(rest, part);
      wanted = without(wanted, part);
    }
    for (const Range& range_left : rest)
      left.push_back(
          {range_left, parked.at + (range_left.begin - parked.place.begin), parked.awaited});
  }
  parked_ = std::move(left);
  return wanted;
}

// Once the missing event is queued it is read before any that is younger. The thread that has
// overtaken it stands until its own next event is read, and could move the same addresses once more
// then: nobody could tell which event is of which pages.
void AttachedWindow::await_overtaken() {
  const Instant until = SteadyClock::read() + kOvertaken;
  for (Parked& parked : parked_)
    if (!std::exchange(parked.awaited, true))
      (void)comes_to_stand_in_change_of(parked.place, until);
}

// Waits for a thread that has no CPU: once it has told, it stands until that is read.
bool AttachedWindow::comes_to_stand_in_change_of(const Range& range, Instant until) const {
  while (has_agent() && SteadyClock::read() < until) {
    if (is_thread_in_change_of(range)) return true;
    std::this_thread::sleep_for(kOvertakenLook);
  }
  return false;
}

// No event is on its way any more: what is parked has gone untold.
size_t AttachedWindow::give_up_parked(std::span<Event> out) {
  untold_ends_.clear();
  size_t stored = 0;
  while (!parked_.empty() && stored < out.size()) {
    const Range place = parked_.front().place;
    unmap(place.begin, place.end, out, stored);
  }
  return stored;
}

// A thread that has a CPU, or waits for one, is not known by its call: one that waits for its event
// to be read is.
bool AttachedWindow::is_thread_in_change_of(const Range& range) const {
  std::error_code error;
  const std::string folder = "/proc/" + std::to_string(pid()) + "/task";
  // A thread, or the process, may end meanwhile: increment() with an error code does not throw.
  for (std::filesystem::directory_iterator thread(folder, error), end; !error && thread != end;
       thread.increment(error)) {
    std::ifstream file(thread->path() / "syscall");
    long call = -1;
    uint64_t address = 0;
    uint64_t bytes = 0;
    file >> call >> std::hex >> address >> bytes;
    const bool changes = call == SYS_mremap || call == SYS_munmap || call == SYS_mmap;
    if (changes && range.intersects({address, address + bytes})) return true;
  }
  return false;
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
  userfaultfd().wake(kLowest, kHighest - kLowest);
}

std::unique_ptr<AddressSpace> AttachedWindow::make_child(Userfaultfd userfaultfd) {
  Result<std::unique_ptr<ExtentMap>> copied = extents()->copy_without_window();
  FARPAGE_CHECK(copied, "no memory for the extents of a forked child");
  auto child = std::make_unique<AttachedWindow>(std::move(userfaultfd), std::move(*copied));
  child->lost_ = lost_;
  child->parked_ = parked_;
  child->next_parking_ = next_parking_;
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

// Of a part that could not be registered no event would tell that it goes, and the next pages that
// are moved there would be taken for those of a change that has not been told (relocate()). Another
// userfaultfd may have it: the kernel registers it with one only. kNotFound: it is not one mapping.
Status AttachedWindow::add_registered(const Range& part) {
  const uint64_t bytes = part.end - part.begin;
  const bool was_registered =
      userfaultfd().find_registered(part.begin, bytes) != Outcome::kUnmapped;
  if (!userfaultfd().register_range(part.begin, bytes))
    return fail(ErrorCode::kNotFound, "it cannot be registered");
  switch (userfaultfd().find_registered(part.begin, bytes)) {
    case Outcome::kDone:
      break;
    case Outcome::kUnmapped:
      return fail(ErrorCode::kNotFound, "not one registered mapping");
    case Outcome::kRetry:
    case Outcome::kAlreadyPresent:
    case Outcome::kProcessGone:
      return fail(ErrorCode::kUnavailable, "the program is changing its mappings, or has ended");
  }
  Status added = extents()->add(part.begin, part.end);
  if (!added && added.error().code == ErrorCode::kExhausted && !was_registered)
    (void)userfaultfd().unregister_range(part.begin, bytes);  // it stays local
  return added;
}

// Between the caller's look at the mappings and this the program may have changed them without an
// event, so what the kernel has registered is asked for, not taken for granted.
Status AttachedWindow::add_extent(uint64_t begin, uint64_t end) {
  const auto is_not_one = [](const Status& added) {
    return !added && added.error().code == ErrorCode::kNotFound;
  };
  Status status = add_registered({begin, end});
  if (!is_not_one(status)) return status;
  status = Status();
  uint64_t at = begin;  // two reads of the file may tell the same mapping twice
  std::ifstream maps("/proc/" + std::to_string(pid()) + "/maps");
  for (std::string line; status && std::getline(maps, line);) {
    const std::optional<MapsLine> mapping = parse_maps_line(line);
    if (!mapping) continue;
    const Range part{std::max(mapping->begin, at), std::min(mapping->end, end)};
    if (part.begin >= part.end) continue;
    Status added = add_registered(part);
    if (is_not_one(added)) continue;
    at = part.end;
    status = std::move(added);
  }
  return status;
}

// By halves: only of one page the kernel's answer says that nothing is there, since a mapping may
// be split at any moment without an event.
void AttachedWindow::add_missing(const Range& range,
                                 std::vector<std::pair<uint64_t, uint64_t>>& missing) {
  const uint64_t pages = (range.end - range.begin) >> kPageShift;
  if (userfaultfd().find_registered(range.begin, range.end - range.begin) != Outcome::kUnmapped)
    return;
  if (pages > 1) {
    const uint64_t middle = range.begin + (pages / 2 << kPageShift);
    add_missing({range.begin, middle}, missing);
    add_missing({middle, range.end}, missing);
  } else if (!missing.empty() && missing.back().second == range.begin) {
    missing.back().second = range.end;
  } else {
    missing.emplace_back(range.begin, range.end);
  }
}

Result<std::vector<std::pair<uint64_t, uint64_t>>> AttachedWindow::extents_without_memory() {
  std::vector<std::pair<uint64_t, uint64_t>> missing;
  for (const PageRun& run : extents()->runs_in(0, kHighest)) {
    if (run.first.value < extents()->window_pages()) continue;
    const uint64_t begin = address_of(run.first);
    add_missing({begin, begin + bytes_of(run)}, missing);
  }
  if (event_pending()) return fail(ErrorCode::kUnavailable, "the program changes its mappings");
  return missing;
}

Status AttachedWindow::for_each_present(
    uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& found) const {
  const Fd pagemap(
      ::open(("/proc/" + std::to_string(pid()) + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap.valid()) return fail_errno("/proc/PID/pagemap");
  return find_present_pages(pagemap, begin, end, found);
}

Status AttachedWindow::find_present(PageRun run, const std::function<void(PageRun)>& found) {
  Status status;
  for_each_part(run, [&](uint64_t address, uint64_t bytes) {
    const std::optional<PageIndex> first = extents()->find(address);
    if (!first || address >= kParking) return true;  // moved meanwhile
    status = for_each_present(address, address + bytes, [&](uint64_t begin, uint64_t end) {
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

// It may be about to fault, and nobody could answer that in a section. Awake: a sleeping one takes
// time to begin.
Status AttachedWindow::await_awake(Nanoseconds patience) {
  Status awake = agent().await_awake(patience);
  if (awake) {
    unanswered_at_.store(0, std::memory_order_relaxed);
  } else if (unanswered_at_.load(std::memory_order_relaxed) == 0) {
    unanswered_at_.store(SteadyClock::read().count(), std::memory_order_relaxed);
  }
  return awake;
}

// Faults are often there before a section: a thread of the program that waits has left its CPU to
// the agent.
void AttachedWindow::give_way_to_readers() {
  const Instant end = SteadyClock::read() + kGiveWay;
  pollfd messages{event_descriptor(), POLLIN, 0};
  while ((order_.is_reading_wanted() || ::poll(&messages, 1, 0) == 1) && SteadyClock::read() < end)
    ::sched_yield();
}

// While an event is unread the moves would be refused, after the pages were copied and written in
// vain.
Status AttachedWindow::prepare_drop(Nanoseconds patience) {
  const Nanoseconds longest = std::max<Nanoseconds>(patience, kQuietPatience);
  const Instant end = SteadyClock::read() + longest;
  Status ready = await_awake(longest);
  if (ready) ready = open_staging();
  while (ready) {
    give_way_to_readers();
    order_.begin_changing();
    if (!event_pending()) return {};
    order_.end_changing();
    if (SteadyClock::read() >= end)
      ready = fail(ErrorCode::kTimedOut, "the program changes its mappings all the time");
    ::sched_yield();
  }
  return ready;
}

// The agent has executed all that it was asked for.
Status AttachedWindow::open_staging() {
  if (std::exchange(drops_staging_, false)) staged_ = 0;
  if (!staging_is_open_) {
    if (!userfaultfd().register_for_moves(staging_address(), staging_bytes()))
      return fail(ErrorCode::kUnavailable, "the staging area of the target is gone");
    staging_is_open_ = true;
  }
  return {};
}

// A move wants its destination to be registered, and the kernel looks at that under the lock under
// which it moves: after this none moves a page, whenever it was asked for. Nor is the drop of what
// is there an event, for which the agent would wait, and all who place pages.
void AttachedWindow::close_staging() {
  (void)userfaultfd().unregister_range(staging_address(), staging_bytes());
  staging_is_open_ = false;
}

bool AttachedWindow::can_drop() {
  return unanswered_at_.load(std::memory_order_relaxed) == 0 ||
         await_awake(Nanoseconds(0)).has_value();
}

bool AttachedWindow::cannot_drop_for_long() {
  const int64_t since = unanswered_at_.load(std::memory_order_relaxed);
  return since != 0 && SteadyClock::read() - Instant(since) > kStands;
}

// Whoever reads events waits for the agent, so it must not wait for a CPU itself. What a dead pager
// has left in the staging area is dropped.
void AttachedWindow::bind(HandedOver& target) {
  staging_address_ = target.staging_address;
  OtherWindow::bind(target);
  if (const pid_t thread = OtherWindow::dropping_thread(); thread != 0)
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kAgentNice);
  agent().cancel(CommandKind::kMoveOut);
  staged_ = staging_pages();
  free_dropped();
}

bool AttachedWindow::is_own_thread(uint32_t thread) {
  return thread != 0 && has_agent() && static_cast<pid_t>(thread) == agent().agent_thread();
}

void AttachedWindow::free_dropped() {
  hashes_.clear();
  if (staged_ == 0 || drops_staging_) return;
  close_staging();
  const Command drop{.address = staging_address(), .pages = staged_, .kind = CommandKind::kDrop};
  drops_staging_ = agent().post(drop).has_value();  // else the ring is full: later
}

Status AttachedWindow::drop(std::span<const PageRun> runs, std::span<DropResult> results,
                            Nanoseconds /*patience*/) {
  moves_.clear();
  parts_.clear();
  results_.assign(runs.size(), DropResult{});
  for (size_t i = 0; i < runs.size(); ++i) {
    FARPAGE_CHECK(runs[i].pages <= kMaxDropRun, "a run of %u pages", runs[i].pages);
    for_each_part(runs[i], [&](uint64_t address, uint64_t bytes) {
      const auto pages = static_cast<uint32_t>(bytes >> kPageShift);
      const std::optional<PageIndex> first = extents()->find(address);
      FARPAGE_CHECK(first, "%#llx is in no extent", static_cast<unsigned long long>(address));
      const Part part{*first, static_cast<uint16_t>(i),
                      static_cast<uint8_t>(first->value - runs[i].first.value)};
      if (staged_ + pages > staging_pages()) {
        keep(part, pages);
        return true;
      }
      uint64_t copied = 0;
      for (uint32_t p = 0; p < pages; ++p)
        if (hashes_.find(part.behind(p).page)) copied |= uint64_t{1} << p;
      moves_.push_back({.address = address,
                        .pages = pages,
                        .kind = CommandKind::kMoveOut,
                        .staging_page = staged_,
                        .hashed = copied});
      parts_.push_back(part);
      staged_ += pages;
      return true;
    });
  }
  if (!moves_.empty()) FARPAGE_TRY_VOID(move_out());
  std::ranges::copy(results_, results.begin());
  return {};
}

// drop() has the results.
Status AttachedWindow::await_drop(std::span<DropResult> results, Nanoseconds /*patience*/) {
  std::ranges::copy(results_, results.begin());
  return {};
}

Status AttachedWindow::move_out() {
  uint32_t pages = 0;
  for (const Command& move : moves_) pages += move.pages;
  const Nanoseconds patience = kMovePatience * (1 + pages / handover::kMaxMovedPages);
  Status moved = agent().begin(moves_, patience);
  if (moved) moved = agent().await(moves_, patience);
  const bool late = !moved;
  if (late) {
    if (moved.error().code != ErrorCode::kTimedOut) return moved;
    agent().abandon();
    FARPAGE_TRY_VOID(settle_late_moves());
  }
  for (size_t m = 0; m < moves_.size(); ++m) {
    for (uint32_t p = 0; p < moves_[m].pages; ++p)
      if (is_kept(moves_[m], p)) keep(parts_[m].behind(p), 1, !late && moves_[m].result == EBUSY);
    if (late || moves_[m].hash != expected_hash(m)) FARPAGE_TRY_VOID(compare_moved(m));
  }
  return {};
}

// The agent waits for a CPU, or is stopped. A page that was moved and is the kernel's zero page
// counts as kept: whoever touches it gets zeros, which is right.
Status AttachedWindow::settle_late_moves() {
  close_staging();
  const uint32_t first = moves_.front().staging_page;
  std::vector<bool> moved(staging_pages());
  FARPAGE_TRY_VOID(for_each_present(staging_address() + (uint64_t{first} << kPageShift),
                                    staging_address() + (uint64_t{staged_} << kPageShift),
                                    [&](uint64_t begin, uint64_t end) {
                                      for (uint64_t at = begin; at < end; at += kPageBytes)
                                        moved[(at - staging_address()) >> kPageShift] = true;
                                    }));
  for (Command& move : moves_) {
    move.kept = 0;
    for (uint32_t p = 0; p < move.pages; ++p)
      if (!moved[move.staging_page + p]) move.kept |= uint64_t{1} << p;
  }
  return {};
}

void AttachedWindow::keep(const Part& part, uint32_t pages, bool busy) {
  for (uint32_t p = 0; p < pages; ++p) {
    const uint64_t bit = uint64_t{1} << (part.at + p);
    results_[part.run].kept |= bit;
    if (busy) results_[part.run].busy |= bit;
  }
}

// A page that was not copied is Clean: it is protected, and nobody has written to it.
uint64_t AttachedWindow::expected_hash(size_t move) const {
  uint64_t hash = 0;
  for (uint32_t p = 0; p < moves_[move].pages; ++p)
    if (const auto copied = copied_hash(move, p); copied && !is_kept(moves_[move], p))
      hash = hash_of_pages(hash, *copied);
  return hash;
}

std::optional<uint64_t> AttachedWindow::copied_hash(size_t move, uint32_t page) const {
  if ((moves_[move].hashed >> page & 1) == 0) return std::nullopt;
  return hashes_.find(parts_[move].behind(page).page);
}

// Page by page: the agent's hash is of all of them, and a late agent has told none.
Status AttachedWindow::compare_moved(size_t move) {
  for (uint32_t p = 0; p < moves_[move].pages; ++p) {
    const std::optional<uint64_t> copied = copied_hash(move, p);
    if (!copied || is_kept(moves_[move], p)) continue;
    std::array<std::byte, kPageBytes> bytes;
    const iovec local{bytes.data(), bytes.size()};
    const iovec staged{
        reinterpret_cast<void*>(staging_address() +
                                (uint64_t{moves_[move].staging_page + p} << kPageShift)),
        bytes.size()};
    if (::process_vm_readv(pid(), &local, 1, &staged, 1, 0) != static_cast<ssize_t>(bytes.size()))
      return fail(ErrorCode::kUnavailable, "the staging area of the target cannot be read");
    if (*copied != PageHashes::hash(bytes)) put_back(parts_[move].behind(p), bytes);
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
    const Outcome outcome = unless_moving(
        userfaultfd().copy(*address, bytes.data(), kPageBytes, Protection::kWritable));
    if (outcome != Outcome::kRetry) break;
    if (!reads_) order_.become_reading();
    reads_ = true;
    begin_following(true);
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
  if (std::exchange(reads_, false)) return true;
  order_.end_changing();
  return false;
}

void AttachedWindow::make_own(PageIndex page) {
  if (!has_agent()) return;
  (void)agent().post({.address = address_of(page), .pages = 1, .kind = CommandKind::kUnshare});
}

void AttachedWindow::read_again(std::span<const uffd_msg> messages) {
  std::ranges::copy_if(messages, std::back_inserter(read_ahead_),
                       [](const uffd_msg& message) { return message.event == UFFD_EVENT_REMOVE; });
  // Only faults: nothing is to be followed.
  if (read_ahead_.empty()) extents()->end_change();
}

void AttachedWindow::read_ahead() {
  std::array<uffd_msg, kMaxMessages> messages;
  const size_t got = read_messages(messages);
  read_ahead_.insert(read_ahead_.end(), messages.begin(),
                     messages.begin() + static_cast<ptrdiff_t>(got));
}

}  // namespace farpage::uffd
