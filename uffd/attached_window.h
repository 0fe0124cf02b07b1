// AttachedWindow: the address space of a program that was not started with far memory: an agent was
// injected into it (inject/injected_agent.h). Internal: other_process.cc makes it.
//
// Nobody tells beforehand what the program does to its mappings; the userfaultfd's events do
// (EventOrder). Its window is the agent's staging area, which the program does not know of; its
// memory is in extents. A forked child has no staging area, and so no window, until it has an agent
// of its own; that one's area is in no extent.
//
// A page leaves by UFFDIO_MOVE into the staging area, never by MADV_DONTNEED:
//  - a page that is pinned (O_DIRECT) would be dropped while a device writes to it; the move is
//    refused;
//  - a range may have been unmapped and mapped anew since its pages were chosen: the move is
//    refused while an event is unread.
// A device may also have written between the copy and the move, so what was moved is compared with
// what was copied, by a hash of 64 bits that the agent computes; a page that differs goes back.
//
// While pages are moved nobody reads messages, so the agent is not waited for for long: when it is
// late (it has no CPU, or is stopped) the staging area is unregistered. What has not been moved
// then never will be.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "uffd/kernel_abi.h"
#include "uffd/other_window.h"
#include "uffd/page_hashes.h"

namespace farpage::uffd {

// Threads: as AddressSpace says. read_events(): one thread at a time, in a section of the order.
class AttachedWindow : public OtherWindow {
 public:
  AttachedWindow(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents)
      : OtherWindow(std::move(userfaultfd), std::move(extents)) {}

  void bind(HandedOver& target) override;
  // 0, as if it were unknown: its priority must not be lowered (bind()).
  pid_t dropping_thread() override { return 0; }

  size_t read_events(std::span<Event> out) override;
  bool has_messages() override { return !read_ahead_.empty(); }
  void end_reading() override;
  EventOrder* event_order() override { return &order_; }
  // Registers it; only the parts that are registered then. kUnavailable: an event is unread, or the
  // process has ended.
  Status add_extent(uint64_t begin, uint64_t end) override;
  Result<std::vector<std::pair<uint64_t, uint64_t>>> extents_without_memory() override;
  Status find_present(PageRun run, const std::function<void(PageRun)>& found) override;
  bool was_given_up_lately(PageIndex page) override;
  bool is_own_thread(uint32_t thread) override;
  void make_own(PageIndex page) override;
  void wake_strays() override;

  Status copy_out(std::span<const PageIndex> present, std::span<std::byte> out) override;
  Status prepare_drop(Nanoseconds patience) override;
  Status drop(std::span<const PageRun> runs, std::span<DropResult> results,
              Nanoseconds patience) override;
  Status await_drop(std::span<DropResult> results, Nanoseconds patience) override;
  bool end_drop() override;
  void free_dropped() override;
  bool can_drop() override;
  bool cannot_drop_for_long() override;
  // Whatever a dead pager has asked it for, it changes nothing of the program any more (bind()).
  Status await_agent(Nanoseconds /*patience*/) override { return {}; }

 protected:
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool intersects(const Range& other) const { return begin < other.end && other.begin < end; }
    bool operator==(const Range&) const = default;
  };

  std::unique_ptr<AddressSpace> make_child(Userfaultfd userfaultfd) override;
  // Before messages are read. `is_any_pending`: there is one that is no fault.
  virtual void begin_following(bool is_any_pending) {
    if (is_any_pending) extents()->begin_change();
  }
  virtual size_t read_messages(std::span<uffd_msg> messages) {
    return userfaultfd().read(messages);
  }
  bool has_parked() const { return !parked_.empty(); }
  virtual bool comes_to_stand_in_change_of(const Range& range, Instant until) const;
  // Those of them that give pages up come first in what read_events() takes.
  void read_again(std::span<const uffd_msg> messages);

 private:
  static constexpr size_t kMaxMessages = 32;
  static constexpr int kBlockShift = 21;
  static constexpr Nanoseconds kLately = std::chrono::seconds(1);
  // An mremap that has been told, whose source's end has not: its thread stands until that is read.
  struct Move {
    Range source;
    Range destination;
  };
  // Where a page is in the arguments of drop().
  struct Part {
    PageIndex page;
    uint16_t run = 0;
    uint8_t at = 0;  // in the run

    Part behind(uint32_t pages) const {
      return {PageIndex{page.value + pages}, run, static_cast<uint8_t>(at + pages)};
    }
  };

  // Pages that have left `place`, to be told where to: at addresses from `at` on, of no process.
  struct Parked {
    Range place;
    uint64_t at = 0;
    bool awaited = false;
  };
  static constexpr uint64_t kParking = uint64_t{1} << 57;

  static std::vector<Range> without(std::span<const Range> ranges, const Range& cut);
  size_t take_messages(std::span<uffd_msg> messages);
  void apply(const uffd_msg& message, std::span<Event> out, size_t& stored);
  void give_up(uint64_t begin, uint64_t end, std::span<Event> out, size_t& stored);
  bool is_untold_end(const Range& range);
  // `own`: the destination of the mremap itself.
  std::vector<Range> without_arrivals(std::vector<Range> ranges, const Range& own);
  void unmap(uint64_t begin, uint64_t end, std::span<Event> out, size_t& stored);
  void relocate(uint64_t from, uint64_t to, uint64_t bytes, std::span<Event> out, size_t& stored);
  void take_fault(const uffd_msg& fault, std::span<Event> out, size_t& stored);
  // Those pages of the place that are in extents. False: there is no room for more extents.
  bool park(const Range& place);
  // Calls each(part of `range`, where its pages are parked), the oldest first, and forgets them
  // there. Returns the rest of the range.
  template <typename Each>
  std::vector<Range> for_each_parked(const Range& range, Each each);
  void await_overtaken();
  // Returns the number of events.
  size_t give_up_parked(std::span<Event> out);
  // What was read ahead has not been applied either.
  bool is_any_unapplied() { return event_pending() || !read_ahead_.empty(); }
  bool is_thread_in_change_of(const Range& range) const;
  void note_given_up(uint64_t begin, uint64_t end);
  Status add_registered(const Range& part);
  void add_missing(const Range& range, std::vector<std::pair<uint64_t, uint64_t>>& missing);
  // As find_present_pages().
  Status for_each_present(uint64_t begin, uint64_t end,
                          const std::function<void(uint64_t, uint64_t)>& found) const;

  Status await_awake(Nanoseconds patience);
  Status open_staging();
  void close_staging();
  void give_way_to_readers();
  void keep(const Part& part, uint32_t pages, bool busy = false);
  // Has the agent execute moves_, and says what has stayed.
  Status move_out();
  Status settle_late_moves();
  // Of those of its pages that were copied and have moved.
  uint64_t expected_hash(size_t move) const;
  std::optional<uint64_t> copied_hash(size_t move, uint32_t page) const;
  // Pages that differ from what was copied go back.
  Status compare_moved(size_t move);
  void put_back(const Part& part, std::span<const std::byte> bytes);
  std::optional<uint64_t> place_now(PageIndex page) const;
  void read_ahead();
  uint64_t staging_address() const { return staging_address_; }
  uint32_t staging_pages() const { return static_cast<uint32_t>(extents()->window_pages()); }
  uint64_t staging_bytes() const { return uint64_t{staging_pages()} << kPageShift; }

  EventOrder order_;
  uint64_t staging_address_ = 0;      // since bind(): while there is an agent
  std::vector<uffd_msg> read_ahead_;  // by put_back(), for read_events()
  std::vector<Move> untold_ends_;
  std::vector<Parked> parked_;  // the oldest first
  uint64_t next_parking_ = kParking;
  // An mremap that could not be followed moved pages to these addresses: their contents are lost.
  std::vector<Range> lost_;
  // When something of a block of 2 MiB was given up last, by a part of its number.
  std::array<std::atomic<int64_t>, 4096> given_up_{};

  // The last drop(): one thread at a time.
  PageHashes hashes_;
  std::vector<handover::Command> moves_;
  std::vector<Part> parts_;  // the first page of each
  std::vector<DropResult> results_;
  bool reads_ = false;  // EventOrder::become_reading()
  // The pages of the staging area before this one are in use, until the agent has dropped them.
  uint32_t staged_ = 0;
  bool drops_staging_ = false;             // that was asked for
  bool staging_is_open_ = false;           // for moves: it is registered
  std::atomic<int64_t> unanswered_at_{0};  // since when the agent has not answered; 0: it has
};

}  // namespace farpage::uffd
