// BudgetGroup: the local memory of the processes of one `farpage run`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "pager/pager.h"

namespace farpage::serve {

enum class BudgetScope : uint8_t {
  kGroup,  // all processes together have the budget (budget_shares.h divides it)
  kEach,   // each process has the budget
};

// "sort (pid 4711)". pid 0: a child that has not told it yet.
std::string label_of(std::string_view program, int pid);

// Threads: any. With kGroup the control thread divides the budget anew every kStep, while there is
// more than one process: for each it reads a few counters. Invariant: a pager here has one limit at
// each moment, and the sum of the limits is within the budget as divide_budget() says.
//
// A forked child shares frames with its parent, and `used` of both counts them. While the sum is
// above the budget for that reason, the frames of relatives are counted once, the limits divide the
// rest, and a process gets frames of its own up to its limit (Pager::guard_shared()).
class BudgetGroup {
 public:
  static constexpr Milliseconds kStep{50};

  struct Process {
    std::string program;
    int pid = 0;
  };

  struct Change {
    Process process;
    uint64_t before_bytes = 0;
    uint64_t after_bytes = 0;
  };

  BudgetGroup(boost::asio::io_context& control, uint64_t local_bytes, BudgetScope scope);
  BudgetGroup(const BudgetGroup&) = delete;
  BudgetGroup& operator=(const BudgetGroup&) = delete;

  uint64_t local_bytes() const;
  // The pager must be removed before it ends.
  void add(pager::Pager& pager, Process process);
  void remove(const pager::Pager& pager);
  // A forked child that most probably ends, or calls exec, soon; before it runs. Returns how many
  // pages it may have besides what it has. May take some milliseconds. `parent`: null if it has
  // ended.
  uint64_t begin_trial(pager::Pager& child, pager::Pager* parent);
  // It does neither: it is added.
  void end_trial(pager::Pager& child, Process process);
  // As Pager::pin(); with kGroup the process gets room from the others for it.
  bool pin(pager::Pager& pager, uffd::PageRun run);
  // kInvalid, kConflict: as Pager::set_local(); nothing has changed then.
  Result<std::vector<Change>> set_local(uint64_t local_bytes);

 private:
  struct Member {
    pager::Pager* pager = nullptr;
    Process process;
    uint64_t faults_seen = 0;
    double faults = 0;     // BudgetMember::faults
    uint64_t pinning = 0;  // the limit that a pin() under way needs
    uint64_t kept = 0;     // shared pages besides its limit
    bool is_new = true;
  };
  struct Trial {
    pager::Pager* pager = nullptr;
    uint64_t inherited = 0;
    uint64_t free_pages = 0;
    bool guarded = false;  // a copy of an inherited page is seen

    uint64_t most_frames() const { return free_pages + (guarded ? 0 : inherited); }
  };

  void tick();
  void tick_later() FARPAGE_REQUIRES(mutex_);
  void start_timer();
  void measure() FARPAGE_REQUIRES(mutex_);
  void divide() FARPAGE_REQUIRES(mutex_);
  void join(pager::Pager& pager, Process process) FARPAGE_REQUIRES(mutex_);
  uint64_t pages() const FARPAGE_REQUIRES(mutex_) { return local_bytes_ >> kPageShift; }
  uint64_t pages_on_trial() const FARPAGE_REQUIRES(mutex_);
  // What several relatives have, counted once. Names the member of each family that keeps it.
  uint64_t shared_frames(std::vector<bool>& keepers) FARPAGE_REQUIRES(mutex_);
  bool is_short_of(uint64_t more) const FARPAGE_REQUIRES(mutex_);
  bool reserve(const pager::Pager& pager, uint64_t limit);
  Status check_pins(uint64_t local_bytes) const FARPAGE_REQUIRES(mutex_);
  Status set_each(uint64_t local_bytes) FARPAGE_REQUIRES(mutex_);

  const BudgetScope scope_;
  mutable Mutex mutex_;
  uint64_t local_bytes_ FARPAGE_GUARDED_BY(mutex_);
  std::vector<Member> members_ FARPAGE_GUARDED_BY(mutex_);
  std::vector<Trial> trials_ FARPAGE_GUARDED_BY(mutex_);
  bool ticks_ FARPAGE_GUARDED_BY(mutex_) = false;
  // By BudgetUse::family: what has become shared.
  std::map<uint64_t, uint64_t> family_frames_ FARPAGE_GUARDED_BY(mutex_);
  bool crowded_ FARPAGE_GUARDED_BY(mutex_) = false;  // shared frames are counted once
  boost::asio::steady_timer timer_;
  // Handlers that are due already are called after the end of this group.
  std::shared_ptr<const bool> exists_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::serve
