#include "serve/budget_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <map>
#include <utility>

#include "base/size.h"
#include "serve/budget_shares.h"

namespace farpage::serve {
namespace {

constexpr double kNewest = 0.1;  // weight of the last step in the average: half a second
// All children on trial have this part of the budget, and each at least kFewestFree pages.
constexpr uint64_t kTrialPart = 32;
constexpr uint64_t kFewestFree = 16;
// The sum of `used` may be so much above the budget, for a moment, without any sharing: floors.
constexpr uint64_t kCrowdedPart = 32;

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
  if (!mutex_.try_lock()) {  // never waits for a trial's beginning or end
    start_timer();
    return;
  }
  const MutexLock lock(mutex_, std::adopt_lock);
  ticks_ = false;
  measure();
  divide();
  if (members_.size() > 1 || !trials_.empty()) tick_later();
}

void BudgetGroup::tick_later() {
  if (!std::exchange(ticks_, true))
    boost::asio::post(timer_.get_executor(), [this, exists = std::weak_ptr(exists_)] {
      if (!exists.expired()) start_timer();
    });
}

void BudgetGroup::start_timer() {
  timer_.expires_after(kStep);
  timer_.async_wait([this, exists = std::weak_ptr(exists_)](boost::system::error_code error) {
    if (!error && !exists.expired()) tick();
  });
}

void BudgetGroup::measure() {
  for (Member& member : members_) {
    const uint64_t faults = member.pager->budget_use().faults;
    const auto step = static_cast<double>(faults - std::exchange(member.faults_seen, faults));
    member.faults += (step - member.faults) * kNewest;
  }
}

uint64_t BudgetGroup::pages_on_trial() const {
  uint64_t sum = 0;
  for (const Trial& trial : trials_) sum += trial.most_frames();
  return std::min(sum, pages());
}

// In each family at most those that have become shared, and no more than its processes still share.
// The oldest one keeps its own: if it lost them and fetched them again, the next child would get
// other frames.
uint64_t BudgetGroup::shared_frames(std::vector<bool>& keepers) {
  struct Family {
    uint64_t shared = 0;
    uint64_t kept = 0;
  };
  std::map<uint64_t, Family> families;
  keepers.assign(members_.size(), false);
  for (size_t i = 0; i < members_.size(); ++i) {
    const pager::BudgetUse use = members_[i].pager->budget_use();
    const auto [at, is_oldest] = families.try_emplace(use.family);
    keepers[i] = is_oldest;
    if (is_oldest) at->second.kept = use.shared_pages;
    at->second.shared += use.shared_pages;
  }
  for (const Trial& trial : trials_) {
    const pager::BudgetUse use = trial.pager->budget_use();
    families[use.family].shared += use.shared_pages;
  }
  uint64_t frames = 0;
  for (auto& [number, family_frames] : family_frames_) {
    const Family& family = families[number];
    family_frames = std::max(family.kept, std::min(family.shared, family_frames));
    frames += family_frames;
  }
  std::erase_if(family_frames_, [](const auto& family) { return family.second == 0; });
  return frames;
}

// With so many pages more the budget could be exceeded.
bool BudgetGroup::is_short_of(uint64_t more) const {
  uint64_t frames = pages_on_trial() + more;
  for (const Member& member : members_) frames += member.pager->budget_use().used_pages;
  return frames > pages();
}

void BudgetGroup::divide() {
  std::vector<BudgetMember> members;
  std::vector<uint64_t> before;
  std::vector<uint64_t> shared;
  uint64_t used = 0;
  for (const Member& member : members_) {
    const pager::BudgetUse use = member.pager->budget_use();
    before.push_back(use.limit_pages);
    shared.push_back(std::min(use.shared_pages, use.used_pages));
    used += use.used_pages;
    members.push_back({.limit = member.is_new ? 0 : use.limit_pages,
                       .used = use.used_pages,
                       .least = std::max(use.least_pages, member.pinning),
                       .faults = member.faults});
  }
  uint64_t total = pages() - pages_on_trial();
  std::vector<bool> keepers;
  const uint64_t frames = shared_frames(keepers);
  const bool was_crowded = std::exchange(crowded_, used > total + total / kCrowdedPart);
  for (size_t i = 0; i < members.size(); ++i) {
    if (crowded_) {
      members[i].used -= shared[i];
    } else if (was_crowded && keepers[i]) {
      members[i].limit = std::max(members[i].limit, members[i].used);
    }
    if (!crowded_ || !keepers[i]) shared[i] = 0;
  }
  if (crowded_) total -= std::min(total, frames);
  // A process without any room would never go on.
  total = std::max(total, std::min(pages(), members.size() * kFloorPages));
  const std::vector<uint64_t> limits = divide_budget(total, members);
  for (size_t i = 0; i < limits.size(); ++i) {
    members_[i].is_new = false;
    // A refused limit (a page was pinned just now) is set at the next step.
    if (limits[i] != before[i] || shared[i] != members_[i].kept) {
      members_[i].kept = shared[i];
      (void)members_[i].pager->set_limit(limits[i], shared[i]);
    }
  }
}

void BudgetGroup::add(pager::Pager& pager, Process process) {
  const MutexLock lock(mutex_);
  join(pager, std::move(process));
}

uint64_t BudgetGroup::begin_trial(pager::Pager& child, pager::Pager* parent) {
  const MutexLock lock(mutex_);
  if (scope_ == BudgetScope::kEach) return pager::kFreePages;
  const uint64_t part = pages() / kTrialPart / (trials_.size() + 1);
  Trial trial{.pager = &child,
              .inherited = child.budget_use().used_pages,
              .free_pages = std::clamp(part, kFewestFree, pager::kFreePages)};
  trial.guarded = is_short_of(trial.most_frames());
  if (trial.guarded) {
    // What the parent has written since its last fork are other frames.
    const uint64_t of_child = child.guard_shared();
    family_frames_[child.budget_use().family] +=
        parent != nullptr ? parent->guard_shared() : of_child;
  }
  trials_.push_back(trial);
  divide();
  tick_later();
  return trial.free_pages;
}

void BudgetGroup::end_trial(pager::Pager& child, Process process) {
  const MutexLock lock(mutex_);
  const auto trial = std::ranges::find(trials_, &child, &Trial::pager);
  if (trial != trials_.end()) trials_.erase(trial);
  join(child, std::move(process));
}

void BudgetGroup::join(pager::Pager& pager, Process process) {
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
  const auto tried =
      std::erase_if(trials_, [&](const Trial& trial) { return trial.pager == &pager; });
  if (scope_ == BudgetScope::kEach) return;
  // The next child of a shell comes soon: what was held back for this one is divided later.
  if (tried > 0) {
    tick_later();
  } else {
    divide();
  }
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
