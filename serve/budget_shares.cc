#include "serve/budget_shares.h"

#include <algorithm>

namespace farpage::serve {
namespace {

constexpr uint64_t kSmallestFloor = 16;
constexpr double kBusy = 0.5;  // faults of a step: a process with more is not idle

struct Share : BudgetMember {
  uint64_t bottom = 0;    // the limit does not go below it
  bool needs = false;     // it is new, or it faults and has used up its limit
  bool deprived = false;  // it needs more, and has less than a busy process keeps
};

struct Group {
  uint64_t total = 0;
  uint64_t fair = 0;  // the equal share
  uint64_t floor = 0;
  std::vector<Share> shares;

  uint64_t limits() const {
    uint64_t sum = 0;
    for (const Share& share : shares) sum += share.limit;
    return sum;
  }
  // Pages that no member has or may have.
  uint64_t pool() const {
    uint64_t taken = 0;
    for (const Share& share : shares) taken += std::max(share.limit, share.used);
    return total > taken ? total - taken : 0;
  }
};

Group group_of(uint64_t total, std::span<const BudgetMember> members) {
  Group group{.total = total, .fair = total / members.size()};
  group.floor = std::clamp(group.fair / 2, kSmallestFloor, kFloorPages);
  for (const BudgetMember& member : members) {
    const bool busy = member.faults >= kBusy;
    const bool is_new = member.limit == 0;
    Share share{member};
    share.bottom = std::max({member.least, group.floor, busy ? group.fair / 2 : 0});
    // An evictor that keeps up leaves between 94 and 97 percent of a limit in use.
    share.needs = is_new || (busy && member.used >= member.limit - member.limit / 8);
    share.deprived = is_new || (share.needs && member.limit < share.bottom);
    share.limit = std::max({member.limit, member.least, is_new ? group.floor : 0});
    group.shares.push_back(share);
  }
  return group;
}

// Costs nobody a page.
void take_unused(Group& group) {
  for (Share& share : group.shares) {
    if (share.needs) continue;
    const uint64_t kept = std::max(share.bottom, share.used + share.used / 8 + group.floor);
    share.limit = std::min(share.limit, kept);
  }
}

// Lowers the limits of those that fault less than half as often as the neediest member, and for a
// deprived one also of those that have more than the equal share.
void take_from_idle(Group& group) {
  double most = 0;
  bool any_deprived = false;
  for (const Share& share : group.shares) {
    if (share.needs) most = std::max(most, share.faults);
    any_deprived = any_deprived || share.deprived;
  }
  for (Share& share : group.shares) {
    const bool above_fair = any_deprived && share.limit > group.fair;
    if (share.deprived || (share.faults * 2 >= most && !above_fair)) continue;
    const uint64_t step = share.limit / (share.faults < kBusy ? 4 : 16);
    const uint64_t bottom = above_fair ? std::max(share.bottom, group.fair) : share.bottom;
    if (share.limit > bottom) share.limit = std::max(bottom, share.limit - step);
  }
}

// After a smaller total, a new member or a new pin: those above the equal share lose the excess, in
// proportion to what they have above it.
void fit_into_total(Group& group) {
  const uint64_t limits = group.limits();
  if (limits <= group.total) return;
  const uint64_t excess = limits - group.total;
  const auto above = [&](const Share& share) {
    const uint64_t kept = std::max(share.bottom, std::min(group.fair, share.limit));
    return share.limit > kept ? share.limit - kept : 0;
  };
  uint64_t all_above = 0;
  for (const Share& share : group.shares) all_above += above(share);
  if (all_above == 0) return;
  for (Share& share : group.shares) {
    const double part = static_cast<double>(above(share)) / static_cast<double>(all_above);
    const auto cut = static_cast<uint64_t>(part * static_cast<double>(excess)) + 1;
    share.limit -= std::min(above(share), cut);
  }
}

// Some member needs more. A deprived one counts as one that faults as often as the mean of the
// needy.
void grant(Group& group, uint64_t pool) {
  double sum = 0;
  size_t needy = 0;
  for (const Share& share : group.shares) {
    if (!share.needs) continue;
    sum += share.faults;
    ++needy;
  }
  const double mean = std::max(sum / static_cast<double>(needy), 1.0);
  const auto weight = [&](const Share& share) {
    return share.deprived ? std::max(share.faults, mean) : std::max(share.faults, mean / 8);
  };
  double weights = 0;
  for (const Share& share : group.shares)
    if (share.needs) weights += weight(share);
  for (Share& share : group.shares)
    if (share.needs)
      share.limit += static_cast<uint64_t>(static_cast<double>(pool) * weight(share) / weights);
}

}  // namespace

std::vector<uint64_t> divide_budget(uint64_t total, std::span<const BudgetMember> members) {
  if (members.empty()) return {};
  if (members.size() == 1) return {std::max(total, members[0].least)};
  Group group = group_of(total, members);
  const bool any_needs =
      std::ranges::any_of(group.shares, [](const Share& share) { return share.needs; });
  uint64_t pool = 0;
  if (any_needs) {
    take_unused(group);
    pool = group.pool();
    if (pool < total / 16) take_from_idle(group);
  }
  fit_into_total(group);
  if (any_needs) grant(group, pool);
  std::vector<uint64_t> limits;
  for (const Share& share : group.shares) limits.push_back(share.limit);
  return limits;
}

}  // namespace farpage::serve
