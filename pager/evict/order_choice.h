// OrderChoice: in which order pages leave, learned from those that come back.
//
// No order is best for all programs: the oldest page is the right victim where touches repeat soon,
// and the worst one in a loop over more pages than are local, where it is needed next. What a
// choice cost is seen later: the page comes back, or stays away. So each remote page carries the
// order by which it left, most batches use the order with the best record, and a few try the others
// (regret from the history of evictions, as LeCaR: Vietri et al., "Driving cache replacement with
// ML-based LeCaR", HotStorage 2018).
//
// The record of an order is the time that a frame stays free for one page that must be fetched
// again: the mean time away within the horizon / the share of pages that come back within it. Both
// come from the survival function of its victims, estimated with those that are still away (Kaplan
// and Meier, "Nonparametric estimation from incomplete observations", 1958).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "pager/pages/page_age.h"

namespace farpage::pager {

// Threads: one, but for returned().
class OrderChoice {
 public:
  // For the next batch, in epoch `now`. It costs a few additions, and once an epoch 100 of them.
  EvictionOrder next(uint8_t now);
  // Pages that have left in epoch `now`, which may be later than that of next().
  void left(EvictionOrder order, uint32_t pages, uint8_t now);
  // Any thread: a page came back, `epochs` after it had left.
  void returned(EvictionOrder order, uint8_t epochs) {
    if (order != EvictionOrder::kByHint && epochs < kHorizon)
      returned_[index_of(order)][epochs].fetch_add(1, std::memory_order_relaxed);
  }

  // Epochs of free frames for each page that came back; 0 before the first epoch has passed.
  double record_of(EvictionOrder order) const { return record_[index_of(order)]; }

 private:
  static constexpr uint32_t kOrders = 3;
  static constexpr uint32_t kHorizon = 32;  // epochs: twice the budget is installed
  // One batch of as many tries another order: more often costs more where the best is known, and
  // less often learns later.
  static constexpr uint32_t kBatchesOfTry = 64;
  static constexpr double kKept = 0.97;  // of each count, after an epoch
  static constexpr double kPrior = 128;  // pages that behaved as those of all orders do
  // An order replaces the oldest first only if its record is so many times better.
  static double handicap_of(EvictionOrder order) {
    return order == EvictionOrder::kYoungest ? 1.2 : 1.14;
  }

  static size_t index_of(EvictionOrder order) { return static_cast<size_t>(order) - 1; }
  static EvictionOrder order_at(size_t index) { return static_cast<EvictionOrder>(index + 1); }
  void advance(uint8_t now);
  void end_epoch();
  void judge();

  using Ages = std::array<float, kHorizon>;
  std::array<std::array<std::atomic<uint32_t>, kHorizon>, kOrders> returned_{};  // in this epoch
  std::array<Ages, kOrders> away_{};     // by the epoch in which they left, modulo the horizon
  std::array<Ages, kOrders> at_risk_{};  // by age: pages that were away so long
  std::array<Ages, kOrders> came_{};     // by age: those of them that came back then
  std::array<double, kOrders> record_{};
  std::array<uint32_t, kOrders> next_try_{};  // batch number
  EvictionOrder best_ = EvictionOrder::kOldest;
  uint32_t batches_ = 0;
  uint8_t epoch_ = 0;
};

}  // namespace farpage::pager
