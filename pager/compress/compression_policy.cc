#include "pager/compress/compression_policy.h"

#include <algorithm>
#include <utility>

#include "base/strong.h"

namespace farpage::pager {
bool CompressionPolicy::tries_next() {
  if (!adaptive_) return true;
  return on_ && (compressible_ || ++skipped_ % kSampleEvery == 0);
}

void CompressionPolicy::tried(size_t bytes) {
  if (!adaptive_) return;
  ++tries_since_review_;
  bytes_ += bytes;
  if (++tries_ < kWindow) return;
  compressible_ = bytes_ * 100 <= uint64_t{kWindow} * kPageBytes * kMostPercent;
  tries_ = 0;
  bytes_ = 0;
}

void CompressionPolicy::review(const Use& use) {
  const auto hits = static_cast<int64_t>(use.hits - reviewed_.hits);
  const auto early = static_cast<int64_t>(use.early_hits - reviewed_.early_hits);
  const auto tries = static_cast<int64_t>(std::exchange(tries_since_review_, 0));
  reviewed_ = use;
  const auto share = std::max(use.share_pages, kFewest);
  if (!on_) {
    if (use.departures - paused_at_ < kPauseShares * share << doublings_) return;
    on_ = true;  // perhaps the program has changed
    on_trial_ = true;
    balance_ns_ = 0;
    doublings_ = std::min(doublings_ + 1, kMostDoublings);
    return;
  }
  if (!compressible_) return;
  const auto copy_ns = static_cast<int64_t>(use.compressed_fault_ns);
  const int64_t saved_ns = static_cast<int64_t>(use.remote_fault_ns) - copy_ns;
  const int64_t gain_ns = (hits - early) * saved_ns - early * (copy_ns + kEarlyNs) - tries * kTryNs;
  const int64_t loss_ns =
      std::max(kLossNs, static_cast<int64_t>(use.share_pages) * kLossOfSharePageNs);
  balance_ns_ = std::min(balance_ns_ + gain_ns, loss_ns);
  if (balance_ns_ > 0) {
    on_trial_ = false;
    doublings_ = 0;
  }
  const bool is_fast = use.wire_ns != 0 && use.wire_ns < kLeastWireNs;
  if (!is_fast && balance_ns_ >= -loss_ns / (on_trial_ ? kTrialPart : 1)) return;
  on_ = false;
  paused_at_ = use.departures;
}

}  // namespace farpage::pager
