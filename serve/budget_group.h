// BudgetGroup: the local memory of the processes of one `farpage run`.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "pager/pager.h"

namespace farpage::serve {

enum class BudgetScope : uint8_t {
  kGroup,  // all processes together have the budget (budget_shares.h divides it)
  kEach,   // each process has the budget
};

// Threads: any. With kGroup a thread of its own divides the budget anew every kStep, while there is
// more than one process: for each it reads a few counters. Invariant: a pager here has one limit at
// each moment, and the sum of the limits is within the budget as divide_budget() says.
class BudgetGroup {
 public:
  static constexpr Milliseconds kStep{50};

  struct Change {
    const pager::Pager* pager = nullptr;
    uint64_t before_bytes = 0;
    uint64_t after_bytes = 0;
  };

  BudgetGroup(uint64_t local_bytes, BudgetScope scope);
  ~BudgetGroup();
  BudgetGroup(const BudgetGroup&) = delete;
  BudgetGroup& operator=(const BudgetGroup&) = delete;

  uint64_t local_bytes() const;
  // `name`: of the process, in errors. The pager must be removed before it ends.
  void add(pager::Pager& pager, std::string name);
  void remove(const pager::Pager& pager);
  // As Pager::pin(); with kGroup the process gets room from the others for it.
  bool pin(pager::Pager& pager, uffd::PageRun run);
  // kInvalid, kConflict: as Pager::set_local(); nothing has changed then.
  Result<std::vector<Change>> set_local(uint64_t local_bytes);

 private:
  struct Member {
    pager::Pager* pager = nullptr;
    std::string name;
    uint64_t faults_seen = 0;
    double faults = 0;     // BudgetMember::faults
    uint64_t pinning = 0;  // the limit that a pin() under way needs
    bool is_new = true;
  };

  void run();
  // With mutex_ held.
  void measure();
  void divide();
  bool reserve(const pager::Pager& pager, uint64_t limit);
  Status check_pins(uint64_t local_bytes) const;
  Status set_each(uint64_t local_bytes);

  const BudgetScope scope_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t local_bytes_;         // guarded by mutex_
  std::vector<Member> members_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  std::jthread thread_;          // with kGroup
};

}  // namespace farpage::serve
