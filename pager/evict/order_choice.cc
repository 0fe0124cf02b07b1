#include "pager/evict/order_choice.h"

#include <algorithm>

namespace farpage::pager {
namespace {

// Keeps a record finite when nothing came back.
constexpr double kFewest = 0.02;
// A try of an order whose record is bad is put off by the square of how bad it is, up to this.
constexpr double kMostPutOff = 32;

}  // namespace

EvictionOrder OrderChoice::next(uint8_t now) {
  advance(now);
  ++batches_;
  for (size_t i = 0; i < kOrders; ++i) {
    if (order_at(i) == best_ || next_try_[i] > batches_) continue;
    const double worse = std::max(1.0, (record_of(best_) + kFewest) / (record_[i] + kFewest));
    const double put_off = std::min(worse * worse, kMostPutOff);
    next_try_[i] = batches_ + static_cast<uint32_t>((kOrders - 1) * kBatchesOfTry * put_off);
    return order_at(i);
  }
  return best_;
}

// An epoch may end between the choice of a batch and the departure of its pages.
void OrderChoice::left(EvictionOrder order, uint32_t pages, uint8_t now) {
  advance(now);
  if (order != EvictionOrder::kByHint)
    away_[index_of(order)][now % kHorizon] += static_cast<float>(pages);
}

void OrderChoice::advance(uint8_t now) {
  if (epoch_ == now) return;
  // After a long pause all pages that were away are beyond the horizon.
  for (uint32_t i = 0; epoch_ != now && i < kHorizon; ++i) end_epoch();
  epoch_ = now;
  judge();
}

void OrderChoice::end_epoch() {
  for (size_t i = 0; i < kOrders; ++i) {
    for (uint32_t age = 0; age < kHorizon; ++age) {
      float& away = away_[i][(epoch_ - age) % kHorizon];
      const auto came =
          static_cast<float>(returned_[i][age].exchange(0, std::memory_order_relaxed));
      at_risk_[i][age] = static_cast<float>(kKept) * at_risk_[i][age] + std::max(away, came);
      came_[i][age] = static_cast<float>(kKept) * came_[i][age] + came;
      away = std::max(away - came, 0.0F);
    }
    away_[i][(epoch_ + 1U) % kHorizon] = 0;
  }
  ++epoch_;
}

void OrderChoice::judge() {
  std::array<double, kHorizon> hazard{};  // of the pages of all orders
  for (uint32_t age = 0; age < kHorizon; ++age) {
    double came = 0;
    double at_risk = 0;
    for (size_t i = 0; i < kOrders; ++i) {
      came += came_[i][age];
      at_risk += at_risk_[i][age];
    }
    if (at_risk > 0) hazard[age] = came / at_risk;
  }
  for (size_t i = 0; i < kOrders; ++i) {
    double still_away = 1;
    double time_away = 0;
    for (uint32_t age = 0; age < kHorizon; ++age) {
      still_away *= 1 - (came_[i][age] + kPrior * hazard[age]) / (at_risk_[i][age] + kPrior);
      time_away += still_away;
    }
    record_[i] = time_away / (1 - still_away + kFewest);
  }
  best_ = EvictionOrder::kOldest;
  for (size_t i = 0; i < kOrders; ++i) {
    const double handicap = best_ == EvictionOrder::kOldest ? handicap_of(order_at(i)) : 1;
    if (record_[i] > record_of(best_) * handicap) best_ = order_at(i);
  }
}

}  // namespace farpage::pager
