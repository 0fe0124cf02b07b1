#include "pager/compress/compression_policy.h"

#include <algorithm>
#include <utility>

#include "base/strong.h"

namespace farpage::pager {
namespace {

// Of a fault, before it is known: with a READ it takes about as long as over shared memory.
constexpr double kUsualFaultNs = 8000;

}  // namespace

bool CompressionPolicy::tries_next() {
  if (!adaptive_) return true;
  if (!compressible_) return ++skipped_ % kSampleEvery == 0;
  return part_ > 0;
}

void CompressionPolicy::tried(size_t bytes) {
  if (!adaptive_) return;
  ++tries_since_review_;
  bytes_ += bytes;
  if (++tries_ < kWindow) return;
  const bool compressible = bytes_ * 100 <= uint64_t{kWindow} * kPageBytes * kMostPercent;
  if (!std::exchange(compressible_, compressible) && compressible) part_ = kFirstPart;
  if (!compressible) part_ = 0;
  tries_ = 0;
  bytes_ = 0;
}

void CompressionPolicy::review(const Use& use) {
  const auto hits = static_cast<int64_t>(use.hits - reviewed_.hits);
  const auto early = static_cast<int64_t>(use.early_hits - reviewed_.early_hits);
  const auto tries = static_cast<int64_t>(std::exchange(tries_since_review_, 0));
  reviewed_ = use;
  if (!compressible_) return;
  if (part_ == 0) {
    if (pause_ > 0 && --pause_ > 0) return;
    part_ = 1;  // perhaps the program has changed
    return;
  }
  const double copy_ns = use.compressed_fault_ns > 0 ? use.compressed_fault_ns : kUsualFaultNs;
  const double read_ns = use.remote_fault_ns > 0 ? use.remote_fault_ns : copy_ns;
  const auto saved_ns = static_cast<int64_t>(read_ns - copy_ns);
  const auto early_ns = static_cast<int64_t>(copy_ns) + kKernelNs;
  const int64_t gain = (hits - early) * saved_ns - early * early_ns - tries * kTryNs;
  if (gain > 0) {
    part_ = std::min(part_ * 2, kParts);
    return;
  }
  part_ /= 2;
  if (part_ == 0) pause_ = kPause;
}

}  // namespace farpage::pager
