#include "serve/budget_group.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "base/size.h"
#include "serve/budget_shares.h"

namespace farpage::serve {
namespace {

constexpr double kNewest = 0.1;  // weight of the last step in the average: half a second

}  // namespace

std::string label_of(std::string_view program, int pid) {
  return pid == 0 ? fmt::format("{} (a new child)", program)
                  : fmt::format("{} (pid {})", program, pid);
}

BudgetGroup::BudgetGroup(boost::asio::io_context& control, uint64_t local_bytes, BudgetScope scope)
    : scope_(scope), local_bytes_(local_bytes), timer_(control) {}

uint64_t BudgetGroup::local_bytes() const {
  const MutexLock lock(mutex_);
  return local_bytes_;
}

void BudgetGroup::tick() {
  const MutexLock lock(mutex_);
  ticks_ = false;
  if (members_.size() < 2) return;
  measure();
  divide();
  tick_later();
}

void BudgetGroup::tick_later() {
  if (std::exchange(ticks_, true)) return;
  timer_.expires_after(kStep);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) tick();
  });
}

void BudgetGroup::measure() {
  for (Member& member : members_) {
    const uint64_t faults = member.pager->budget_use().faults;
    const auto step = static_cast<double>(faults - std::exchange(member.faults_seen, faults));
    member.faults += (step - member.faults) * kNewest;
  }
}

void BudgetGroup::divide() {
  std::vector<BudgetMember> members;
  std::vector<uint64_t> before;
  for (const Member& member : members_) {
    const pager::BudgetUse use = member.pager->budget_use();
    before.push_back(use.limit_pages);
    members.push_back({.limit = member.is_new ? 0 : use.limit_pages,
                       .used = use.used_pages,
                       .least = std::max(use.least_pages, member.pinning),
                       .faults = member.faults});
  }
  const std::vector<uint64_t> limits = divide_budget(local_bytes_ >> kPageShift, members);
  for (size_t i = 0; i < limits.size(); ++i) {
    members_[i].is_new = false;
    // A refused limit (a page was pinned just now) is set at the next step.
    if (limits[i] != before[i]) (void)members_[i].pager->set_limit(limits[i]);
  }
}

void BudgetGroup::add(pager::Pager& pager, Process process) {
  const MutexLock lock(mutex_);
  members_.push_back(
      {.pager = &pager, .process = std::move(process), .faults_seen = pager.budget_use().faults});
  if (scope_ == BudgetScope::kEach) {
    (void)pager.set_local(local_bytes_);  // no page is pinned yet: this cannot fail
    return;
  }
  divide();
  if (members_.size() > 1) tick_later();
}

void BudgetGroup::remove(const pager::Pager& pager) {
  const MutexLock lock(mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.pager == &pager; });
  if (scope_ == BudgetScope::kGroup) divide();
}

// Not while the lock is held: a pin waits for the eviction that is under way.
bool BudgetGroup::pin(pager::Pager& pager, uffd::PageRun run) {
  if (pager.pin(run)) return true;
  if (scope_ == BudgetScope::kEach || !reserve(pager, pager.limit_to_pin(run))) return false;
  const bool pinned = pager.pin(run);
  (void)reserve(pager, 0);
  return pinned;
}

// False: the others need what is missing for that limit. 0: ends the reservation.
bool BudgetGroup::reserve(const pager::Pager& pager, uint64_t limit) {
  const MutexLock lock(mutex_);
  uint64_t needed = limit;
  Member* reserving = nullptr;
  for (Member& member : members_) {
    if (member.pager == &pager) {
      reserving = &member;
    } else {
      needed += std::max({member.pager->budget_use().least_pages, member.pinning, kFloorPages});
    }
  }
  if (reserving == nullptr || (limit != 0 && needed > local_bytes_ >> kPageShift)) return false;
  reserving->pinning = limit;
  divide();
  return true;
}

Status BudgetGroup::check_pins(uint64_t local_bytes) const {
  if (members_.size() == 1) return {};  // its pager says it with more detail
  uint64_t least = 0;
  for (const Member& member : members_) least += member.pager->budget_use().least_pages;
  if (least <= local_bytes >> kPageShift) return {};
  return fail(ErrorCode::kConflict,
              fmt::format("local: the processes have locked memory (mlock) that needs a budget of "
                          "at least {}M; unlock some, or choose more",
                          (least >> (20 - kPageShift)) + 1));
}

// All, or none.
Status BudgetGroup::set_each(uint64_t local_bytes) {
  for (const Member& member : members_) {
    const Status changed = member.pager->set_local(local_bytes);
    if (changed) continue;
    // No pager refuses: each has this budget already, or had it before.
    for (const Member& former : members_) (void)former.pager->set_local(local_bytes_);
    return fail_with(label_of(member.process.program, member.process.pid), changed.error());
  }
  return {};
}

Result<std::vector<BudgetGroup::Change>> BudgetGroup::set_local(uint64_t local_bytes) {
  FARPAGE_TRY_VOID(pager::validate_local(local_bytes));
  const MutexLock lock(mutex_);
  std::vector<Change> changes;
  for (const Member& member : members_)
    changes.push_back({.process = member.process,
                       .before_bytes = member.pager->budget_use().limit_pages << kPageShift});
  if (scope_ == BudgetScope::kGroup) {
    FARPAGE_TRY_VOID(check_pins(local_bytes));
  }
  if (scope_ == BudgetScope::kEach || members_.size() == 1) {
    FARPAGE_TRY_VOID(set_each(local_bytes));
  }
  local_bytes_ = local_bytes;
  if (scope_ == BudgetScope::kGroup) divide();
  for (size_t i = 0; i < changes.size(); ++i)
    changes[i].after_bytes = members_[i].pager->budget_use().limit_pages << kPageShift;
  return changes;
}

}  // namespace farpage::serve
